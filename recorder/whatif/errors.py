"""Why something cannot be replayed or predicted."""

from __future__ import annotations

from cbtrace.recorder.errors import RecordError
from cbtrace.traces.errors import declare
from cbtrace.traces.schema import Severity


class ReplayError(RecordError):
    """A recording cannot be replayed, or a setting not predicted; the text says why and what to do."""

    slug = "replay-differs"


declare(
    "replay-differs",
    Severity.BROKEN,
    "Replayed with its own settings, the recording does not give the schedule that was recorded, so that a prediction "
    "from it would rest on nothing.",
    "Record the workload again; the message names the first step that differs.",
)
declare(
    "replay-other-version",
    Severity.BROKEN,
    "The recording is of another version of Transformers than the one installed, whose scheduler may decide otherwise.",
    "Install the version that the message names, and try again.",
)
declare(
    "replay-not-continuous",
    Severity.BROKEN,
    "There is no schedule to replay: the trace is of static batching, is itself a prediction, or holds no engine.",
    "Name a recording of continuous batching.",
)
declare(
    "replay-incomplete",
    Severity.BROKEN,
    "Steps or requests of the recording are missing: it is damaged, was cut short, or is a ring.",
    "Record the whole run, without a ring, from before the first request on.",
)
declare(
    "replay-several",
    Severity.BROKEN,
    "The recording is of several engines, sessions or ranks, and a replay is of one.",
    "Record one engine, from its start to its end.",
)
declare(
    "replay-prefix",
    Severity.BROKEN,
    "Prompts share prefixes, and a trace holds no tokens of prompts: which ones share which cannot be told from it.",
    "Record the workload without shared prefixes, or with one that all prompts share.",
)
declare(
    "replay-engine-died",
    Severity.BROKEN,
    "The recorded engine died of an error that a replay cannot meet, such as running out of memory.",
    "Record a run that goes to its end.",
)
declare(
    "whatif-setting",
    Severity.BROKEN,
    "The effect of a setting cannot be told by a replay, or the engine refuses its value.",
    "Change one of the settings that the message names, to a value that the engine takes.",
)
declare(
    "whatif-unlike-runs",
    Severity.BROKEN,
    "The recordings are of different models, machines or versions, so that no one model of time holds for all of them.",
    "Name recordings of one model on one machine.",
)
declare(
    "predicted-unseen",
    Severity.BROKEN,
    "The prediction needs the time of something that no recording given shows, such as batches without CUDA graphs.",
    "Add a recording that shows it: a time model is fitted to what was measured, and does not guess.",
)
declare(
    "predicted-dead-end",
    Severity.BROKEN,
    "With the changed settings, the engine would come to where no request can be scheduled and none put off, and die.",
    "Choose a larger KV cache, or send shorter requests.",
)
declare(
    "predicted-does-not-fit",
    Severity.BROKEN,
    "By the engine's own memory model, the KV cache and its buffers do not fit on the recorded device.",
    "Choose fewer blocks or batch tokens.",
)
