"""Runs a workload on a continuous-batching manager: one's own, or one made for a run of an experiment.

>>> manager = model.init_continuous_batching(generation_config, ContinuousBatchingConfig(num_blocks=64))
>>> outcome = run_workload(manager, workload, "run.cbt", name="64 blocks")
>>> manager.stop()
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from cbtrace.recorder.experiments.failures import EngineDiedError
from cbtrace.recorder.experiments.loop_gate import LoopGate
from cbtrace.recorder.experiments.submit import Submission, Submitter
from cbtrace.recorder.experiments.workload import Workload
from cbtrace.recorder.session import Recording, attach

_POLL_S = 0.2
_STOP_S = 30.0


@dataclass
class Outcome:
    """What became of a workload."""

    submission: Submission = field(default_factory=Submission)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    """Generated tokens of the requests that finished."""
    errors: dict[str, str] = field(default_factory=dict)
    """What the engine said of the requests that failed."""
    unfinished: list[str] = field(default_factory=list)
    """Requests of which no result came before the engine ended."""
    fatal: BaseException | None = None
    """What the engine died of."""

    @property
    def pending(self) -> int:
        """Requests that were submitted and have no result yet."""
        return len(self.submission.lags_ns) - len(self.tokens) - len(self.errors)

    @property
    def complete(self) -> bool:
        """Whether every request finished."""
        return not (self.errors or self.unfinished or self.fatal)


def run_workload(manager: Any, workload: Workload, path: str | os.PathLike[str], **options: Any) -> Outcome:
    """Send a workload to a manager that has not been started, record it, and wait for all results.

    The manager is warmed up and started, and left running. Options are those of
    :func:`~cbtrace.recorder.session.record`; generated token ids are stored unless ``token_ids=False``.

    Raises:
        cbtrace.traces.CbtraceError: the trace cannot be created.
        ValueError: the manager is running already.
    """
    if manager.is_running():
        raise ValueError("The manager is running already: a workload starts it, so that its first batch is complete.")
    facts = {**workload.facts, **(options.pop("facts", None) or {})}
    with attach(manager, path, **{"token_ids": True, **options, "facts": facts}) as recording:
        manager.warmup()
        return drive(manager, workload, recording)


def drive(manager: Any, workload: Workload, recording: Recording | None, outcome: Outcome | None = None) -> Outcome:
    """Start a warmed-up manager, send it a workload and wait for the last result, or for the engine's end.

    The workload begins when the engine's loop is ready for its first batch. An ``outcome`` that is given is filled as
    results come, for whoever looks on.
    """
    outcome = outcome or Outcome()
    gate = LoopGate(manager)
    submitter = Submitter(manager, workload, recording, outcome.submission, gate.open)
    waiting = {request.id for request in workload.requests}
    try:
        manager.start()
        if gate.reached():
            submitter.begin()
        while waiting and manager.is_running():
            _take(manager.get_result(timeout=_POLL_S), outcome, waiting)
            if submitter.finished:
                waiting.difference_update(submitter.submission.refused)
            if submitter.submission.error is not None:
                raise submitter.submission.error
    finally:
        submitter.stop()
        gate.open()
    # The results of a dying engine are in its queue when its thread has ended.
    router = manager.output_router.output_queue
    while waiting and not router.empty():
        _take(router.get_nowait(), outcome, waiting)
    outcome.unfinished = sorted(waiting | set(submitter.submission.refused))
    outcome.fatal = fatal_error(manager)
    return outcome


def _take(result: Any, outcome: Outcome, waiting: set[str]) -> None:
    if result is None or result.request_id not in waiting:
        return
    if result.error is not None:
        outcome.errors[result.request_id] = str(result.error)
    elif result.is_finished():
        outcome.tokens[result.request_id] = [int(token) for token in result.generated_tokens]
    else:
        return
    waiting.discard(result.request_id)


def finish(manager: Any, outcome: Outcome) -> None:
    """Stop a manager that has been driven.

    Raises:
        EngineDiedError: it ended by itself, with requests pending.
    """
    if outcome.fatal is not None or (outcome.unfinished and not manager.is_running()):
        raise EngineDiedError("The engine ended with requests pending.") from outcome.fatal
    manager.stop(block=True, timeout=_STOP_S)


def fatal_error(manager: Any) -> BaseException | None:
    """What a manager's generation thread died of. Kept in different places by different versions of Transformers."""
    status = getattr(manager, "background_thread_status", None)
    error = getattr(status, "fatal_error", None) or getattr(manager, "fatal_error", None)
    return error if isinstance(error, BaseException) else None
