"""One run of an experiment inside its own process, from importing the libraries to closing the trace."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cbtrace.recorder.experiments.continuous import Outcome, drive
from cbtrace.recorder.experiments.failures import EngineDiedError
from cbtrace.recorder.experiments.job import Job, differing_conditions
from cbtrace.recorder.experiments.models import (
    device_of,
    generation_config,
    load_encoder,
    load_model,
    vocabulary_size,
)
from cbtrace.recorder.experiments.settings import engine_config
from cbtrace.recorder.experiments.static import StaticRunner, run_static
from cbtrace.recorder.experiments.static_trace import StaticTrace
from cbtrace.recorder.experiments.submit import Submission
from cbtrace.recorder.experiments.workload import PromptsSpec, Workload, build_workload
from cbtrace.recorder.fingerprint import fingerprint
from cbtrace.recorder.session import Recording
from cbtrace.traces.experiment import SubmitLag

_STOP_S = 30.0


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
        import torch
        import transformers  # noqa: F401  # its version is one of the conditions

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

    def _warm_up_part(self, workload: Workload) -> Workload:
        """The first requests of the workload, all at once: sent before anything is measured."""
        return Workload(workload.name, workload.requests[: self._job.warmup_requests], True, {})

    def _continuous(self, workload: Workload) -> Submission:
        job, listener = self._job, self._listener
        recording = Recording(
            job.trace, name=job.name, tags=job.tags, facts=workload.facts, overwrite=True, token_ids=True
        )
        with recording:
            listener.enter("model load")
            model = load_model(job.model, self._folder)
            generation = generation_config(job.generation, model)
            config = engine_config(job.settings, device_of(job.model))
            if job.warmup_requests:
                listener.enter("warm-up requests")
                _warm_up_engine(model, generation, config, self._warm_up_part(workload))
            recording.install()
            listener.enter("engine creation")
            manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=config)
            manager.warmup()
            outcome = Outcome()
            listener.progress = lambda: (recording.steps, outcome.pending)
            listener.enter("generation")
            drive(manager, workload, recording, outcome)
            _finish(manager, outcome)
        return outcome.submission

    def _static(self, workload: Workload) -> None:
        job, listener = self._job, self._listener
        trace = StaticTrace(job.trace, name=job.name, tags=job.tags, facts=workload.facts, overwrite=True)
        try:
            listener.enter("model load")
            with trace.failing_in("model load"):
                model = load_model(job.model, self._folder)
            generation = generation_config(job.generation, model)
            if job.warmup_requests:
                listener.enter("warm-up requests")
                with trace.failing_in("warm-up"):
                    self._warm_up_static(model, generation, self._warm_up_part(workload))
            runner = StaticRunner(model, workload, trace, generation, job.batch_size, job.batch_by)
            listener.progress = lambda: (trace.sink.steps, runner.pending)
            listener.enter("generation")
            runner.run()
        finally:
            trace.sink.close()

    def _warm_up_static(self, model: Any, generation: Any, workload: Workload) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "warm-up.cbt"
            run_static(model, workload, path, generation_config=generation, batch_size=self._job.batch_size)
        _forget_memory()


def _warm_up_engine(model: Any, generation: Any, config: Any, workload: Workload) -> None:
    """Send some requests through an engine that nobody records, and take it down again."""
    manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=config)
    manager.warmup()
    _finish(manager, drive(manager, workload, None))
    del manager
    _forget_memory()


def _finish(manager: Any, outcome: Outcome) -> None:
    if outcome.fatal is not None or (outcome.unfinished and not manager.is_running()):
        raise EngineDiedError("The engine ended with requests pending.") from outcome.fatal
    manager.stop(block=True, timeout=_STOP_S)


def _forget_memory() -> None:
    """Give back what a warm-up took, so that it does not count as a peak of the run."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def lag_of(submission: Submission) -> SubmitLag | None:
    """How late requests were submitted, in milliseconds; ``None`` when none was."""
    if not submission.lags_ns:
        return None
    p50, p99 = np.percentile(np.array(submission.lags_ns) / 1e6, [50, 99]).tolist()
    return SubmitLag(round(p50, 4), round(p99, 4), round(max(submission.lags_ns) / 1e6, 4))
