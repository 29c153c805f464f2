"""Errors are one sentence with a slug, and go from process to process as they are."""

from __future__ import annotations

import pickle

import pytest

import cbtrace.commands.collect_messages  # noqa: F401  declares all errors
from cbtrace.traces.errors import CbtraceError, TraceFullError, TraceVersionError

MADE = {TraceVersionError: ("run.cbt", 999), TraceFullError: ("run.cbt", 4096)}


def kinds(kind: type[CbtraceError] = CbtraceError) -> list[type[CbtraceError]]:
    return [kind, *(further for each in kind.__subclasses__() for further in kinds(each))]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_an_error_is_the_same_behind_a_pipe(kind: type[CbtraceError]) -> None:
    error = kind(*MADE[kind]) if kind in MADE else kind("What is wrong.", slug="some-slug")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.slug, again.exit_code, vars(again)) == (
        str(error),
        error.slug,
        error.exit_code,
        vars(error),
    )
