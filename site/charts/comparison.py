"""Charts of the compare page. Run A is solid, run B dashed, everywhere.

Data, by name: ``curves`` (run, value in ms, share), ``difference`` (percentile, change in ms) and ``pairs`` (rank,
change in ms).
"""

from __future__ import annotations

from typing import Any

import altair as alt

from cbtrace.site.charts import palette
from cbtrace.site.words import Words

RUNS = ["A", "B"]
WIDTH = 420
"""Pixels; the browser puts in the width of the chart's place before it draws."""


def distribution_spec(words: Words) -> Any:
    """Cumulative curves of one latency in both runs, on a logarithmic axis."""
    latency = alt.Axis(title=words("chart.latency_ms"), format="~g", tickCount=6)
    share = alt.Axis(title=words("chart.share"), format="%", tickCount=5)
    colors = alt.Scale(domain=RUNS, range=[palette.RUN_A, palette.RUN_B])
    dashes = alt.Scale(domain=RUNS, range=[[1, 0], [6, 3]])
    return (
        alt.Chart(alt.NamedData("curves"), width=WIDTH, height=220)
        .mark_line(interpolate="linear", strokeWidth=1.75, clip=True)
        .encode(
            x=alt.X("value:Q", scale=alt.Scale(type="log", nice=False), axis=latency),
            y=alt.Y("share:Q", scale=alt.Scale(domain=[0, 1]), axis=share),
            color=alt.Color("run:N", scale=colors, legend=None),
            strokeDash=alt.StrokeDash("run:N", scale=dashes, legend=None),
            order=alt.Order("share:Q"),
        )
        .to_dict()
    )


def difference_spec(words: Words) -> Any:
    """B less A at each percentile: above zero, B is slower."""
    base = alt.Chart(alt.NamedData("difference"), width=WIDTH, height=220)
    percentile = alt.Axis(title=words("chart.percentile"), tickCount=5)
    x = alt.X("percentile:Q", scale=alt.Scale(domain=[0, 100]), axis=percentile)
    y = alt.Y("change:Q", axis=alt.Axis(title=words("chart.change_ms"), tickCount=5))
    zero = alt.Chart(alt.NamedData("difference")).mark_rule(color=palette.LIMIT).encode(y=alt.datum(0))
    return alt.layer(
        base.mark_area(color=palette.RUN_B, opacity=0.25).encode(x=x, y=y),
        base.mark_line(color=palette.RUN_B, strokeWidth=1.5).encode(x=x, y=y),
        zero,
    ).to_dict()


def pairs_spec(words: Words) -> Any:
    """The change of each paired request, sorted."""
    base = alt.Chart(alt.NamedData("pairs"), width=WIDTH, height=160)
    return (
        base.mark_rect(color=palette.RUN_B, opacity=0.8)
        .encode(
            x=alt.X("rank:Q", axis=alt.Axis(title=words("chart.pairs_rank"), tickMinStep=1)),
            x2=alt.X2("rank_end:Q"),
            y=alt.Y("change:Q", axis=alt.Axis(title=words("chart.change_ms"), tickCount=5)),
            y2=alt.Y2("zero:Q"),
        )
        .to_dict()
    )
