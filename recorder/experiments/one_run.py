"""One run of an experiment inside its own process, from importing the libraries to closing the trace."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cbtrace.recorder.experiments.continuous import Outcome, drive, finish
from cbtrace.recorder.experiments.job import Job, differing_conditions
from cbtrace.recorder.experiments.models import (
    device_of,
    generation_config,
    load_encoder,
    load_model,
    vocabulary_size,
)
from cbtrace.recorder.experiments.settings import engine_config
from cbtrace.recorder.experiments.static import StaticRunner
from cbtrace.recorder.experiments.static_trace import StaticTrace
from cbtrace.recorder.experiments.submit import Submission
from cbtrace.recorder.experiments.warm_up import warm_up_engine, warm_up_static
from cbtrace.recorder.experiments.workload import PromptsSpec, Workload, build_workload
from cbtrace.recorder.fingerprint import fingerprint
from cbtrace.recorder.session import Recording
from cbtrace.traces.experiment import SubmitLag


class Listener(Protocol):
    """Whoever is told how the run goes."""

    progress: Callable[[], tuple[int, int]]

    def enter(self, phase: str) -> None:
        """The run enters a phase."""

    def say(self, **fields: Any) -> None:
        """One of the fields of a report has become known."""


class OneRun:
    """Runs a job and says how it goes; raises whatever ends it early, when its trace is closed."""

    def __init__(self, job: Job, listener: Listener) -> None:
        self._job = job
        self._listener = listener
        self._folder = Path(job.plan_folder)

    def run(self) -> None:
        """Run it."""
        self._listener.enter("import")
        _import_engine()
        import torch

        if self._job.model.threads is not None:
            torch.set_num_threads(self._job.model.threads)
        conditions = fingerprint()
        differing = differing_conditions(self._job.conditions, conditions)
        if differing:
            self._listener.say(differing=differing)
            return
        self._listener.say(conditions=conditions)
        torch.manual_seed(self._job.seed)
        self._listener.enter("workload")
        workload = self._workload()
        self._listener.say(workload=workload.facts)
        if self._job.kind == "static":
            self._static(workload)
            self._listener.say(done=True)
        else:
            self._listener.say(done=True, lag=lag_of(self._continuous(workload)))

    def _workload(self) -> Workload:
        job = self._job
        encode = load_encoder(job.model, self._folder) if isinstance(job.workload, PromptsSpec) else None
        return build_workload(
            job.workload,
            seed=job.seed,
            vocabulary=vocabulary_size(job.model, self._folder),
            folder=self._folder,
            encode=encode,
            name=job.workload_name,
        )

    def _continuous(self, workload: Workload) -> Submission:
        job, listener = self._job, self._listener
        facts = workload.facts | job.placement
        recording = Recording(
            job.trace, name=job.name, tags=job.tags, facts=facts, overwrite=True, token_ids=job.token_ids
        )
        with recording:
            listener.enter("model load")
            model = load_model(job.model, self._folder)
            generation = generation_config(job.generation, model)
            config = engine_config(job.settings, device_of(job.model))
            if job.warmup_requests:
                listener.enter("warm-up requests")
                warm_up_engine(model, generation, job.settings, workload.first(job.warmup_requests))
            recording.install()
            listener.enter("engine creation")
            manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=config)
            manager.warmup()
            outcome = Outcome()
            listener.progress = lambda: (recording.steps, outcome.pending)
            listener.enter("generation")
            drive(manager, workload, recording, outcome)
            finish(manager, outcome)
        return outcome.submission

    def _static(self, workload: Workload) -> None:
        job, listener = self._job, self._listener
        facts = workload.facts | job.placement
        trace = StaticTrace(
            job.trace, name=job.name, tags=job.tags, facts=facts, overwrite=True, token_ids=job.token_ids
        )
        try:
            listener.enter("model load")
            with trace.failing_in("model load"):
                model = load_model(job.model, self._folder)
            generation = generation_config(job.generation, model)
            if job.warmup_requests:
                listener.enter("warm-up requests")
                with trace.failing_in("warm-up"):
                    warm_up_static(model, generation, job.batch_size, workload.first(job.warmup_requests))
            runner = StaticRunner(model, workload, trace, generation, job.batch_size, job.batch_by)
            listener.progress = lambda: (trace.sink.steps, runner.pending)
            listener.enter("generation")
            runner.run()
        finally:
            trace.sink.close()


def _import_engine() -> None:
    """Import PyTorch and Transformers: most of a short run. Nothing that they make meanwhile is garbage, so that
    looking for garbage, a sixth of the time, is left out."""
    gc.disable()
    try:
        importlib.import_module("transformers.generation.continuous_batching")
    finally:
        gc.enable()


def lag_of(submission: Submission) -> SubmitLag | None:
    """How late requests were submitted, in milliseconds; ``None`` when none was."""
    if not submission.lags_ns:
        return None
    p50, p99 = np.percentile(np.array(submission.lags_ns) / 1e6, [50, 99]).tolist()
    return SubmitLag(round(p50, 4), round(p99, 4), round(max(submission.lags_ns) / 1e6, 4))
