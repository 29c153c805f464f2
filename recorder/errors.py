"""Errors of the recorder's own front door; nothing inside a recording raises."""

from __future__ import annotations

from cbtrace.traces.errors import CbtraceError, declare
from cbtrace.traces.schema import Severity


class RecordError(CbtraceError):
    """A recording cannot begin."""

    slug = "record-failed"


declare(
    "record-failed",
    Severity.BROKEN,
    "A recording, or a run that is to be recorded, cannot begin.",
    "Read the sentence printed: it names what is missing.",
)
declare(
    "no-transformers",
    Severity.BROKEN,
    "Recording needs Transformers with continuous batching, and it cannot be imported.",
    'Install the recorder\'s part with pip install "cbtrace[record]", in the environment that runs the model.',
)
declare(
    "no-engine",
    Severity.WARNING,
    "The program ended without creating a continuous-batching engine, so there is nothing to show.",
    "Check that it calls generate_batch, init_continuous_batching or serve with continuous batching.",
)
declare(
    "hook-missing",
    Severity.WARNING,
    "This version of Transformers lacks a method that the recorder listens to.",
    "Use a supported version, or report the missing name; the fields it would fill are absent.",
)
declare(
    "unverified-version",
    Severity.WARNING,
    "cbtrace was not tested on this version of Transformers.",
    "Run cbtrace doctor, or use one of the supported versions.",
)
declare(
    "memory-model-unknown",
    Severity.INFO,
    "The engine's own memory model could not be evaluated, so predicted memory is not shown.",
    "Nothing is lost of what was measured.",
)
declare(
    "no-nvml",
    Severity.INFO,
    "The GPU could not be sampled through NVML.",
    "Install nvidia-ml-py and check that the driver is visible; device-wide figures are absent otherwise.",
)
declare(
    "memory-unread",
    Severity.INFO,
    "A source of memory figures could not be read.",
    "Its fields are absent from that moment on.",
)
declare(
    "no-gpu-time",
    Severity.INFO,
    "The GPU time of steps is not known, or not of all steps.",
    "It needs a model on a CUDA device; host times are complete either way.",
)
