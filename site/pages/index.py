"""The index: one row a run, and which settings set the runs apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cbtrace.site import formats
from cbtrace.site.analysis.catalogue import METRICS, value_of
from cbtrace.site.analysis.conditions import settings
from cbtrace.site.analysis.summary import RunSummary
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.pages.headline import metric_text, shown_unit
from cbtrace.site.pages.labels import health, run_name
from cbtrace.site.pages.run import device_label, model_label
from cbtrace.site.plain_text import distinct, plain
from cbtrace.site.run_ranks import RunRanks
from cbtrace.site.words import Words
from cbtrace.traces.reader import Trace

COLUMNS = (
    ("ttft_ms", "p50"),
    ("ttft_ms", "p95"),
    ("token_gap_ms", "p50"),
    ("token_gap_ms", "p99"),
    ("e2e_ms", "p95"),
    ("throughput_generated_tps", None),
    ("soft_resets", None),
    ("requests.failed", None),
    ("peak_memory_bytes", None),
)
CHANGED_SHOWN = 4
TAGS_SHOWN = 12
FEW_TAGS = 3
"""More stand folded up: a row is then no taller than what it is read for."""
EXPERIMENT = "experiment"
_SAID_ELSEWHERE = frozenset({"based_on", "changes", "pinned"})
"""Tags of an experiment's run that its page tells better: the settings that vary are a column of their own."""
_TUNED = ("num_blocks", "max_batch_tokens", "safety_margin", "scheduler_type", "use_async_batching", "use_cuda_graph")
"""Settings that people tune: shown before all others that vary."""
"""The tag by which the runs of an experiment say where they belong."""


@dataclass(frozen=True)
class Column:
    """A number that the table shows of every run."""

    id: str
    """Names it in an address that holds the order of the table."""
    label: str
    unit: str


@dataclass(frozen=True)
class Cell:
    """One number, to read and to sort by."""

    value: float | None
    text: str


@dataclass(frozen=True)
class Changed:
    """A setting that is not the same in all runs."""

    name: str
    value: str


@dataclass(frozen=True)
class IndexRow:
    """One run."""

    slug: str
    name: str
    source: str
    tags: list[tuple[str, str]]
    """The first :data:`TAGS_SHOWN` that have a value."""
    predicted: bool
    model: str
    device: str
    recorded: str
    health: str
    ranks: int
    """How many tensor-parallel ranks the run had; 1 of a run that was not split."""
    cells: list[Cell]
    resolved: dict[str, str]
    changed: list[Changed] = field(default_factory=list)
    changed_more: int = 0


@dataclass(frozen=True)
class UnreadTrace:
    """A trace that has no page."""

    source: str
    """Its file name."""
    text: str
    """Why, in a sentence."""
    slug: str


@dataclass(frozen=True)
class ExperimentEntry:
    """What the index says of an experiment."""

    name: str
    page: str
    """Path relative to the site."""
    done: int
    runs: int
    adopted: list[str]
    """Names of the variants to adopt."""


def index_row(trace: Trace, summary: RunSummary, slug: str, ranks: RunRanks | None = None) -> IndexRow:
    """What the index shows of one run."""
    engine = trace.engines[-1] if trace.engines else None
    cells = []
    for name, statistic in COLUMNS:
        value = value_of(summary, METRICS[name], statistic)
        cells.append(Cell(value, metric_text(value, METRICS[name])))
    hidden = _SAID_ELSEWHERE if EXPERIMENT in summary.tags else frozenset()
    tags = [
        (plain(key, 80), plain(value, 200))
        for key, value in sorted(summary.tags.items())
        if value.strip() and key not in hidden
    ]
    return IndexRow(
        slug=slug,
        name=plain(run_name(trace, summary), 200),
        source=plain(trace.path.name, 200),
        tags=tags[:TAGS_SHOWN],
        predicted=summary.predicted,
        model=plain(model_label(trace), 200),
        device=plain(device_label(trace), 200),
        recorded=formats.instant(summary.recorded_ns),
        health=health(trace, doubtful=ranks is not None and ranks.doubtful),
        ranks=len(ranks.group.ranks) if ranks else 1,
        cells=cells,
        resolved={plain(s.name, 80): distinct(formats.fact(s.resolved), 200) for s in settings(engine)}
        if engine
        else {},
    )


def with_changes(rows: list[IndexRow]) -> list[IndexRow]:
    """The rows with the settings that vary among them filled in. One that a run does not have (static batching, another
    version) does not vary for that."""
    values: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.resolved.items():
            values.setdefault(name, set()).add(value)
    varying = sorted((name for name, seen in values.items() if len(seen) > 1), key=_order)
    return [_with_change(row, [name for name in varying if name in row.resolved]) for row in rows]


def _order(name: str) -> tuple[int, str]:
    return (_TUNED.index(name) if name in _TUNED else len(_TUNED)), name


def _with_change(row: IndexRow, names: list[str]) -> IndexRow:
    shown = [Changed(name, row.resolved[name]) for name in names[:CHANGED_SHOWN]]
    return replace(row, changed=shown, changed_more=max(0, len(names) - CHANGED_SHOWN))


def columns(words: Words) -> list[Column]:
    """Headings of the numbers."""
    return [
        Column(
            f"{name}.{statistic}" if statistic else name,
            f"{words(f'metric.{name}.label')}{f' {statistic}' if statistic else ''}",
            shown_unit(METRICS[name]),
        )
        for name, statistic in COLUMNS
    ]


def tag_names(rows: list[IndexRow]) -> list[str]:
    """The tags to group runs by, that of experiments first."""
    names = {name for row in rows for name, _ in row.tags}
    return sorted(names, key=lambda name: (name != EXPERIMENT, name))


def index_page(
    chrome: Chrome, rows: list[IndexRow], experiments: Sequence[ExperimentEntry], unread: list[UnreadTrace]
) -> str:
    """The page as HTML."""
    return chrome.page(
        "index.html",
        "index",
        runs=with_changes(rows),
        columns=columns(chrome.words),
        tag_names=tag_names(rows),
        few_tags=FEW_TAGS,
        experiments=list(experiments),
        unread=unread,
        texts=chrome.words.starting("index.js."),
    )
