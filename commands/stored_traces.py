"""Traces that a command line names by URL: fetched from their storage into a folder of this machine."""

from __future__ import annotations

from pathlib import Path

from cbtrace.commands.trace_files import ENDINGS
from cbtrace.recorder.cluster.storage import Storage, shown
from cbtrace.traces.errors import UsageError
from cbtrace.traces.experiment import EXPERIMENT_FILE


def fetched(url: str, folder: Path) -> Path:
    """Fetch a trace, or all traces and experiments of a folder in a storage, at any depth; return where they are now.

    Raises:
        UsageError: there is no trace.
        StorageError: the storage cannot be read.
    """
    if url.endswith(ENDINGS):
        above, _, name = url.rpartition("/")
        Storage(above).fetch(name, folder / name)
        return folder / name
    storage = Storage(url)
    names = storage.names()
    if not any(name.endswith(ENDINGS) for name in names):
        raise UsageError(f"{shown(url)} holds no traces: name a folder with files ending in .cbt.", slug="no-traces")
    for name in names:
        if name.endswith((*ENDINGS, f"/{EXPERIMENT_FILE}")) or name == EXPERIMENT_FILE:
            storage.fetch(name, folder / name)
    return folder
