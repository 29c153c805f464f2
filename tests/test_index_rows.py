"""What a row of the index says: the settings and tags that tell runs apart."""

from __future__ import annotations

from pathlib import Path

import cbtrace.traces
from cbtrace.site.analysis.summary import summarize
from cbtrace.site.pages.index import IndexRow, index_row, with_changes
from cbtrace.traces import open_trace

SAMPLES = Path(cbtrace.traces.__file__).parent / "samples"


def rows(*names: str) -> list[IndexRow]:
    traces = [open_trace(SAMPLES / f"h200-{name}.cbt") for name in names]
    return with_changes([index_row(trace, summarize(trace), "slug") for trace in traces])


def test_what_is_tuned_comes_first_and_what_a_run_lacks_does_not_vary() -> None:
    wide, narrow, static = rows("num-blocks-512-1", "safety-margin-0.0", "static")
    assert [(one.name, one.value) for one in wide.changed] == [("num_blocks", "512"), ("safety_margin", "0.15")]
    assert [(one.name, one.value) for one in narrow.changed] == [("num_blocks", "64"), ("safety_margin", "0.0")]
    assert not static.changed and not wide.changed_more


def test_the_bookkeeping_of_an_experiment_is_not_shown_twice() -> None:
    (row,) = rows("num-blocks-64-1")
    names = [name for name, _ in row.tags]
    assert {"experiment", "variant"} <= set(names)
    assert not {"based_on", "changes", "pinned"} & set(names)
