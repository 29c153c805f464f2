"""Charts of the compare page. Run A is solid, run B dashed, and A stands above B, everywhere.

Data, by name: ``curves`` (run, line, value in ms, share), ``difference`` (percentile, change in ms, and the range low
to high over pairs of runs), ``effects`` (label, rank, change, low, high in %, beyond), ``scatter`` (a and b in ms)
with ``diagonal`` (a, b), ``pairs`` (rank, change in ms), ``bars`` (label, rank, run, amount) and ``timeline`` (run, t
in s, step in ms, waiting, used in bytes).
"""

from __future__ import annotations

from typing import Any

import altair as alt

from cbtrace.site.charts import palette
from cbtrace.site.charts.axes import BYTES_LABEL, amount, seconds
from cbtrace.site.words import Words

RUNS = ["A", "B"]
WIDTH = 420
"""Pixels; the browser puts in the width of the chart's place before it draws."""
LABELS = 170
"""Room for the names of rows, pixels."""

_COLORS = alt.Scale(domain=RUNS, range=[palette.RUN_A, palette.RUN_B])
_DASHES = alt.Scale(domain=RUNS, range=[[1, 0], [6, 3]])


def comparison_specs(words: Words) -> dict[str, Any]:
    """All of them, by name."""
    return {
        "distribution": distribution_spec(words),
        "difference": difference_spec(words),
        "effects": effects_spec(words),
        "scatter": scatter_spec(words),
        "pairs": pairs_spec(words),
        "cut_bars": bars_spec(words("chart.cut_mean_ms")),
        "budget_bars": bars_spec(words("chart.bytes"), bytes=True),
        "aligned": aligned_spec(words),
    }


def distribution_spec(words: Words) -> Any:
    """Cumulative curves of one latency, one line a run, on a logarithmic axis."""
    latency = alt.Axis(title=words("chart.latency_ms"), format="~g", tickCount=6)
    share = alt.Axis(title=words("chart.share"), format="%", tickCount=5)
    return (
        alt.Chart(alt.NamedData("curves"), width=WIDTH, height=220)
        .mark_line(interpolate="linear", strokeWidth=1.75, clip=True)
        .encode(
            x=alt.X("value:Q", scale=alt.Scale(type="log", nice=False), axis=latency),
            y=alt.Y("share:Q", scale=alt.Scale(domain=[0, 1]), axis=share),
            color=alt.Color("run:N", scale=_COLORS, legend=None),
            strokeDash=alt.StrokeDash("run:N", scale=_DASHES, legend=None),
            detail="line:N",
            order=alt.Order("share:Q"),
        )
        .to_dict()
    )


def difference_spec(words: Words) -> Any:
    """B less A at each percentile: above zero, B is slower. The band is the range over all pairs of runs."""
    base = alt.Chart(alt.NamedData("difference"), width=WIDTH, height=220)
    percentile = alt.Axis(title=words("chart.percentile"), tickCount=5)
    x = alt.X("percentile:Q", scale=alt.Scale(domain=[0, 100]), axis=percentile)
    axis = alt.Axis(title=words("chart.change_ms"), tickCount=5)
    zero = alt.Chart(alt.NamedData("difference")).mark_rule(color=palette.LIMIT).encode(y=alt.datum(0))
    return alt.layer(
        base.mark_area(color=palette.RUN_B, opacity=0.25).encode(x=x, y=alt.Y("low:Q", axis=axis), y2=alt.Y2("high:Q")),
        base.mark_line(color=palette.RUN_B, strokeWidth=1.5).encode(x=x, y=alt.Y("change:Q", axis=axis)),
        zero,
    ).to_dict()


def effects_spec(words: Words) -> Any:
    """Changes in per cent of A, with intervals where there are repeats; only what is beyond noise is a filled point."""
    base = alt.Chart(alt.NamedData("effects"), width=WIDTH, height=alt.Step(22))
    label = alt.Axis(title=None, labelLimit=LABELS, minExtent=LABELS, maxExtent=LABELS)
    y = alt.Y("label:N", sort=alt.EncodingSortField("rank", op="min"), axis=label)
    x = alt.Axis(title=words("chart.change_percent"), tickCount=5)
    zero = alt.Chart(alt.NamedData("effects")).mark_rule(color=palette.LIMIT).encode(x=alt.datum(0))
    return (
        alt.layer(
            zero,
            base.mark_rule(color=palette.RUN_B, strokeWidth=2).encode(
                x=alt.X("low:Q", axis=x), x2=alt.X2("high:Q"), y=y
            ),
            base.mark_point(stroke=palette.RUN_B, fill=palette.RUN_B, size=52, strokeWidth=1.5, opacity=1).encode(
                x=alt.X("change:Q"), y=y, fillOpacity=alt.FillOpacity("beyond:Q", scale=None)
            ),
        )
        .properties(usermeta={"margin": LABELS + 24, "labels": LABELS})
        .to_dict()
    )


def scatter_spec(words: Words) -> Any:
    """Each paired request: its latency in A to the right, in B upward. Above the line it took longer in B."""
    x = alt.X("a:Q", axis=alt.Axis(title=words("chart.pair_a_ms"), tickCount=5), scale=alt.Scale(zero=True))
    y = alt.Y("b:Q", axis=alt.Axis(title=words("chart.pair_b_ms"), tickCount=5), scale=alt.Scale(zero=True))
    line = alt.Chart(alt.NamedData("diagonal"), width=WIDTH, height=220)
    points = alt.Chart(alt.NamedData("scatter"), width=WIDTH, height=220)
    return alt.layer(
        line.mark_line(color=palette.LIMIT, strokeWidth=1).encode(x=x, y=y),
        points.mark_point(color=palette.RUN_B, filled=True, size=22, opacity=0.55).encode(x=x, y=y),
    ).to_dict()


def pairs_spec(words: Words) -> Any:
    """The change of each paired request, sorted."""
    base = alt.Chart(alt.NamedData("pairs"), width=WIDTH, height=220)
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


def bars_spec(title: str, *, bytes: bool = False) -> Any:
    """Amounts of A and B under each other, row by row: A is the upper, filled bar, B the lower, outlined one.

    With ``bytes``, the parameter ``ticks`` says which amounts get a label.
    """
    ticks = {"labelExpr": BYTES_LABEL, "values": alt.expr("ticks")} if bytes else {"tickCount": 5}
    x = alt.X("amount:Q", axis=alt.Axis(title=title, **ticks))
    label = alt.Axis(title=None, labelLimit=LABELS, minExtent=LABELS, maxExtent=LABELS)
    opacity = alt.Scale(domain=RUNS, range=[1, 0.35])
    return (
        alt.Chart(alt.NamedData("bars"), width=WIDTH, height=alt.Step(11))
        .mark_bar(strokeWidth=1.25)
        .encode(
            x=x,
            y=alt.Y("label:N", sort=alt.EncodingSortField("rank", op="min"), axis=label),
            yOffset=alt.YOffset("run:N", sort=RUNS),
            fill=alt.Fill("run:N", scale=_COLORS, legend=None),
            stroke=alt.Stroke("run:N", scale=_COLORS, legend=None),
            fillOpacity=alt.FillOpacity("run:O", scale=opacity, legend=None),
        )
        .properties(usermeta={"margin": LABELS + 24, "labels": LABELS})
        .add_params(alt.param(name="ticks", value=[0]))
        .to_dict()
    )


def aligned_spec(words: Words) -> Any:
    """Both runs over the time since their own first submit: longest step, most waiting, most KV used.

    The parameter ``ticks`` says which amounts of KV get a label.
    """
    panels = (
        ("step", amount(words("chart.step_time"), ticks=3)),
        ("waiting", amount(words("chart.waiting"), ticks=3)),
        ("used", amount(words("chart.kv_used"), label_expr=BYTES_LABEL, values=alt.expr("ticks"))),
    )
    made = [_panel(field, axis, words, last=field == "used") for field, axis in panels]
    whole = alt.vconcat(*made, spacing=10).resolve_scale(x="shared")
    return whole.add_params(alt.param(name="ticks", value=[0])).to_dict()


def _panel(field: str, axis: alt.Axis, words: Words, *, last: bool) -> Any:
    title = words("chart.since_submit") if last else None
    x = alt.X("t:Q", scale=alt.Scale(nice=False, zero=False), axis=seconds(title))
    return (
        alt.Chart(alt.NamedData("timeline"), width=WIDTH, height=90)
        .mark_line(interpolate="step-after", strokeWidth=1.4, clip=True)
        .encode(
            x=x,
            y=alt.Y(f"{field}:Q", axis=axis),
            color=alt.Color("run:N", scale=_COLORS, legend=None),
            strokeDash=alt.StrokeDash("run:N", scale=_DASHES, legend=None),
            order=alt.Order("t:Q"),
        )
    )
