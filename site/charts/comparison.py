"""Charts of the compare page. Run A is solid, run B dashed, everywhere.

Data, by name: ``curves`` (run, value in ms, share), ``difference`` (percentile, change in ms) and ``pairs`` (rank,
change in ms).
"""

from __future__ import annotations

from typing import Any

import altair as alt

from cbtrace.site.charts import palette
from cbtrace.site.charts.axes import amount
from cbtrace.site.words import Words

RUNS = ["A", "B"]


def distribution_spec(words: Words) -> dict[str, Any]:
    """Cumulative curves of one latency in both runs, on a logarithmic axis."""
    return (
        alt.Chart(alt.NamedData("curves"), width=420, height=220)
        .mark_line(interpolate="linear", strokeWidth=1.75, clip=True)
        .encode(
            x=alt.X("value:Q", scale=alt.Scale(type="log", nice=False), axis=alt.Axis(title=words("chart.latency_ms"), format="~g", tickCount=6)),
            y=alt.Y("share:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(title=words("chart.share"), format="%", tickCount=5)),
            color=alt.Color("run:N", scale=alt.Scale(domain=RUNS, range=[palette.RUN_A, palette.RUN_B]), legend=None),
            strokeDash=alt.StrokeDash("run:N", scale=alt.Scale(domain=RUNS, range=[[1, 0], [6, 3]]), legend=None),
            order=alt.Order("share:Q"),
        )
        .to_dict()
    )


def difference_spec(words: Words) -> dict[str, Any]:
    """B less A at each percentile: above zero, B is slower."""
    base = alt.Chart(alt.NamedData("difference"), width=420, height=220)
    x = alt.X("percentile:Q", scale=alt.Scale(domain=[0, 100]), axis=alt.Axis(title=words("chart.percentile"), tickCount=5))
    y = alt.Y("change:Q", axis=alt.Axis(title=words("chart.change_ms"), tickCount=5))
    zero = alt.Chart(alt.NamedData("difference")).mark_rule(color=palette.LIMIT).encode(y=alt.datum(0))
    return alt.layer(
        base.mark_area(color=palette.RUN_B, opacity=0.25).encode(x=x, y=y),
        base.mark_line(color=palette.RUN_B, strokeWidth=1.5).encode(x=x, y=y),
        zero,
    ).to_dict()


def pairs_spec(words: Words) -> dict[str, Any]:
    """The change of each paired request, sorted."""
    base = alt.Chart(alt.NamedData("pairs"), width=420, height=160)
    return (
        base.mark_bar(color=palette.RUN_B, opacity=0.8)
        .encode(
            x=alt.X("rank:Q", axis=alt.Axis(title=words("chart.pairs_rank"), tickMinStep=1)),
            x2=alt.X2("rank_end:Q"),
            y=alt.Y("change:Q", axis=amount(words("chart.change_ms"), ticks=5)),
        )
        .to_dict()
    )
