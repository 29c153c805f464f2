"""The headline numbers of a run's page: what stands below each."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from cbtrace.site.analysis.summary import summarize
from cbtrace.site.pages.headline import cards
from cbtrace.site.words import load_words
from cbtrace.traces import open_trace

SAMPLES = Path(str(files("cbtrace.traces") / "samples"))


@pytest.mark.parametrize(
    ("sample", "note"),
    [
        ("h200-num-blocks-64-1", "3,840 tokens recomputed"),
        ("h200-cpu-offload", "6 tokens recomputed, those in flight at an offload included"),
    ],
)
def test_recomputed_tokens_are_told_with_what_made_them(sample: str, note: str) -> None:
    (card,) = [
        it
        for it in cards(summarize(open_trace(SAMPLES / f"{sample}.cbt")), load_words("en"))
        if it.metric == "soft_resets"
    ]
    assert card.note == note
