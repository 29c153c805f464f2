"""Builds a site from traces: a folder of static pages that works from ``file://``."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cbtrace.site.analysis.summary import RunSummary
from cbtrace.site.assets import site_assets, site_chrome
from cbtrace.site.folder import STATE, OutputFolder
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.records import kept_record, maker_digest
from cbtrace.site.run_builds import Builder, FailedRun, RunTask, Tell, build_runs, run_tasks
from cbtrace.site.run_files import SLUG_DIGITS, FinishedRun, RunRecord, RunSource, digest_file
from cbtrace.site.shared_pages import put_shared_pages
from cbtrace.site.words import load_words
from cbtrace.traces.errors import TraceError, UsageError
from cbtrace.traces.rank_groups import RankGroup, rank_groups, rank_of_file

Progress = Callable[[float, int, str], None]
"""Called with how many runs are built, a share of one included, how many there are to build, and the name of a file at
hand."""


@dataclass(frozen=True)
class BuiltRun:
    """One run of a site: its trace, and where its page is, relative to the site."""

    source: Path
    name: str
    page: str
    complete: bool
    """Whether everything that was recorded was read."""
    summary: RunSummary
    kept: bool
    """Its files are those of an earlier build: nothing that they depend on has changed."""


@dataclass(frozen=True)
class BuildReport:
    """What was built."""

    out: Path
    runs: list[BuiltRun]
    failed: list[FailedRun]
    """Traces and experiments that have no page."""
    files: int
    bytes: int
    joined: int
    """Traces that are part of another one's run, as further ranks of it."""


def build_site(
    paths: Sequence[Path],
    out: Path,
    *,
    title: str | None = None,
    language: str = "en",
    jobs: int = 1,
    builder: Builder | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
    waiting: Callable[[], None] | None = None,
) -> BuildReport:
    """Read every trace of ``paths`` and write a site to the folder ``out``.

    Runs are listed in the order of ``paths``; ``language`` is one of :data:`~cbtrace.site.words.LANGUAGES`, and a site
    without a ``title`` has that of its language. Runs that have not changed since an earlier build stay as they are,
    unless ``fresh``. The same traces give the same bytes, whatever was built before and with however many ``jobs``
    (processes; with more than one, the program that calls must be safe to import). ``builder`` builds runs elsewhere
    than in processes of this machine. ``waiting`` is called when another build must come to its end first.

    Ranks of one tensor-parallel run are one run, under the lowest of them. A damaged trace is shown under a banner. One
    that cannot be read has no page: it is in the report and on the index.
    An experiment whose traces are among them (its ``experiment.json`` lies beside a trace or one folder above) has a
    page as well.

    Raises:
        UsageError: no traces, an unknown language, or an output folder that holds something else.
        TraceError: there is not one trace that can be read; the message is that of the first.
        OutputWriteError: the site could not be written. Its list of runs is as before, finished runs are kept.
    """
    if not paths:
        raise UsageError("There is no trace to build a site from: name one or more .cbt files.")
    words = load_words(language)
    with OutputFolder(out, waiting) as folder:
        assets = site_assets(words)
        chrome = site_chrome(assets, title, words)
        folder.put(assets.files)
        tasks = run_tasks(sources(dict.fromkeys(paths)), maker_digest(chrome))
        kept = {} if fresh else _kept(folder, tasks)
        wanted = [task for task in tasks if task not in kept]
        tell = _Teller(progress, len(wanted))
        built = _build(folder, chrome, wanted, builder or partial(build_runs, jobs=jobs, tell=tell), tell)
        outcomes = {task: kept.get(task) or built[task] for task in tasks}
        runs = [(task, run) for task, run in outcomes.items() if isinstance(run, RunRecord)]
        failed = [run for run in outcomes.values() if isinstance(run, FailedRun)]
        if not runs:
            raise TraceError(failed[0].text, slug=failed[0].slug)
        failed += put_shared_pages(folder, chrome, {task.source.path: run for task, run in runs}, failed)
    joined = len(set(paths)) - len(tasks)
    return _report(folder, [(task.source.path, run, task in kept) for task, run in runs], failed, joined)


def _report(
    folder: OutputFolder, runs: Iterable[tuple[Path, RunRecord, bool]], failed: list[FailedRun], joined: int
) -> BuildReport:
    pages = {name: size for name, size in folder.files.items() if not name.startswith(STATE)}
    built = [BuiltRun(path, run.name, run.page, run.complete, run.summary, kept) for path, run, kept in runs]
    return BuildReport(folder.out, built, failed, len(pages), sum(pages.values()), joined)


def sources(paths: Iterable[Path]) -> list[RunSource]:
    """The traces that stand for runs with their digests, those whose digests begin alike counted, and with each the
    other ranks of its run."""
    paths = list(paths)
    groups = rank_groups(place for path in paths if (place := rank_of_file(path)) is not None)
    of_lead = {group.paths[0]: group for group in groups}
    further = {path for group in groups for path in group.paths[1:]}
    found: list[RunSource] = []
    copies: Counter[str] = Counter()
    for path in paths:
        if path in further:
            continue
        digest, size = digest_file(path)
        copies[digest[:SLUG_DIGITS]] += 1
        group = of_lead.get(path)
        others = _digest_ranks(group) if group else ""
        found.append(RunSource(path, digest, size, copies[digest[:SLUG_DIGITS]], group, others))
    return found


def _digest_ranks(group: RankGroup) -> str:
    """SHA-256 of all that a run's files depend on beside the trace of its first rank."""
    others = [(path.name, digest_file(path)) for path in group.paths[1:]]
    return hashlib.sha256(repr((others, group.ranks, group.twice)).encode()).hexdigest()


def _kept(folder: OutputFolder, tasks: Sequence[RunTask]) -> dict[RunTask, RunRecord]:
    """The runs of an earlier build that nothing has changed for."""
    found = {task: kept_record(folder, task.record) for task in tasks if task.source.digest}
    return {task: record for task, record in found.items() if record is not None}


@dataclass
class _Teller:
    """Tells how far a build is; it never goes back, while runs are finished and others have only begun."""

    progress: Progress | None
    total: int
    most: float = 0

    def __call__(self, done: float, name: str) -> None:
        self.most = max(self.most, done)
        if self.progress is not None:
            self.progress(self.most, self.total, name)


def _build(
    folder: OutputFolder, chrome: Chrome, tasks: Sequence[RunTask], builder: Builder, tell: Tell
) -> dict[RunTask, RunRecord | FailedRun]:
    """Build runs, and put each in its place as soon as it is finished: a build that is ended can go on from there."""
    built: dict[RunTask, RunRecord | FailedRun] = {}
    tell(0, tasks[0].source.path.name if tasks else "")
    with closing(builder(chrome, tasks, folder.new)) as outcomes:
        for task, outcome in outcomes:
            if isinstance(outcome, FinishedRun):
                folder.take(folder.new, outcome.sizes)
                built[task] = outcome.record
            else:
                built[task] = outcome
            tell(len(built), task.source.path.name)
    return built
