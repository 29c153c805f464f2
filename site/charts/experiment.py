"""Charts of an experiment's page.

``variable``: one setting on x, one run-level value on y. Data, by name: ``runs`` (label, value, kind: ``run``,
``start`` or ``predicted``), ``intervals`` (label, mean, low, high), ``failures`` (label, phase) and ``limits`` (limit,
an SLO) and ``forecasts`` (label, value, low, high: predicted, and the ends of the error).

``frontier``: throughput on x, a latency on y. Data: ``points`` (medians: throughput, latency, kind, number), ``runs``
(throughput, latency), ``front`` (throughput, latency), ``box`` (limit, an SLO, and the floor of the chart) and
``forecasts`` (throughput, latency, number, and the ends of the error: fewest, most, low, high).

Labels of points stand where the browser has found room: dx, dy and align.

The browser puts in the order of the values, the titles of axes, the format of their numbers, and a logarithmic axis
where latencies are far apart.
"""

from __future__ import annotations

from typing import Any

import altair as alt

from cbtrace.site.charts import palette
from cbtrace.site.charts.axes import LABEL_WIDTH

WIDTH = 420
"""Pixels; the browser puts in the width of the chart's place before it draws."""
KIND_SHAPES = {"run": "circle", "start": "diamond", "predicted": "square"}
PHASE_SHAPES = {
    "before": "stroke",
    "model_load": "triangle-down",
    "cache_creation": "square",
    "warm_up": "diamond",
    "prefill": "triangle-up",
    "decode_growth": "triangle-right",
    "generation": "cross",
}
"""The shape of a failure tells the phase it happened in."""
VARIANT_SHAPES = {"baseline": "diamond", "continuous": "circle", "static": "square"}


def experiment_specs() -> dict[str, Any]:
    """Both, by name."""
    return {"variable": variable_spec(), "frontier": frontier_spec()}


def variable_spec() -> Any:
    """The runs of each value as points, the interval of their mean as a bar, and failures on the floor of the chart."""
    x = alt.X("label:N", sort=None, axis=alt.Axis(title="", labelAngle=0, labelLimit=110))
    y = alt.Y("value:Q", scale=alt.Scale(zero=True), axis=_amount())
    limit = _layer("limits").mark_rule(color=palette.LIMIT, strokeDash=[5, 3], strokeWidth=1.5)
    bar = _layer("intervals").mark_rule(color=palette.SIGNAL, strokeWidth=7, opacity=0.28)
    mean = _layer("intervals").mark_tick(color=palette.SIGNAL, thickness=2, size=26)
    runs = _layer("runs").mark_point(size=58, opacity=0.9, strokeWidth=1.5)
    band, forecast = _forecast_marks()
    failed = _layer("failures").mark_point(size=110, filled=True, color=palette.FAILURE, yOffset=-8)
    kinds = list(KIND_SHAPES)
    fills = alt.Scale(domain=kinds, range=[palette.SIGNAL, palette.SIGNAL, "var(--panel)"])
    phases = alt.Scale(domain=list(PHASE_SHAPES), range=list(PHASE_SHAPES.values()))
    return (
        alt.layer(
            limit.encode(y=alt.Y("limit:Q", axis=_amount())),
            bar.encode(x=x, y=alt.Y("low:Q", axis=_amount()), y2="high:Q"),
            mean.encode(x=x, y=alt.Y("mean:Q", axis=_amount())),
            band.encode(x=x, y=alt.Y("low:Q", axis=_amount()), y2="high:Q"),
            forecast.encode(x=x, y=y),
            runs.encode(
                x=x,
                y=y,
                shape=alt.Shape("kind:N", scale=alt.Scale(domain=kinds, range=list(KIND_SHAPES.values())), legend=None),
                fill=alt.Fill("kind:N", scale=fills, legend=None),
                stroke=alt.value(palette.SIGNAL),
            ),
            failed.encode(x=x, y=alt.datum(0), shape=alt.Shape("phase:N", scale=phases, legend=None)),
            width=WIDTH,
            height=210,
        )
        .resolve_scale(shape="independent")
        .to_dict()
    )


def frontier_spec() -> Any:
    """Medians with their numbers, the single runs behind them, the line of the best, and the room under an SLO."""
    x = alt.X("throughput:Q", scale=alt.Scale(zero=True), axis=alt.Axis(title="", tickCount=6))
    y = alt.Y("latency:Q", scale=alt.Scale(zero=True), axis=_amount())
    limit = alt.Y("limit:Q", axis=_amount())
    shapes = alt.Scale(domain=list(VARIANT_SHAPES), range=list(VARIANT_SHAPES.values()))
    points = _layer("points")
    band, forecast = _forecast_marks()
    room: dict[str, Any] = {name: alt.expr(f"datum.{name}") for name in ("dx", "dy", "align")}
    return alt.layer(
        _layer("box").mark_rect(color=palette.ROOM, opacity=0.18).encode(y=limit, y2="floor:Q"),
        _layer("box").mark_rule(color=palette.LIMIT, strokeDash=[5, 3], strokeWidth=1.5).encode(y=limit),
        _layer("front").mark_line(color=palette.DECODE, strokeWidth=2).encode(x=x, y=y, order="throughput:Q"),
        _layer("runs").mark_point(color=palette.QUIET, size=14, opacity=0.6, filled=True).encode(x=x, y=y),
        band.encode(x=alt.X("fewest:Q", axis=alt.Axis(title="")), x2="most:Q", y=y),
        band.encode(x=x, y=alt.Y("low:Q", axis=_amount()), y2="high:Q"),
        forecast.encode(x=x, y=y),
        _layer("forecasts").mark_text(color=palette.QUIET, fontSize=11, **room).encode(x=x, y=y, text="number:N"),
        points.mark_point(size=90, filled=True, opacity=1, color=palette.SIGNAL).encode(
            x=x, y=y, shape=alt.Shape("kind:N", scale=shapes, legend=None)
        ),
        points.mark_text(color="var(--ink)", fontSize=12, **room).encode(x=x, y=y, text="number:N"),
        width=WIDTH,
        height=320,
    ).to_dict()


def _forecast_marks() -> tuple[alt.Chart, alt.Chart]:
    """The error of a prediction, and its point: hollow, so that it is not taken for a run."""
    of = _layer("forecasts")
    return (
        of.mark_rule(color=palette.QUIET, strokeWidth=1, strokeDash=[2, 2]),
        of.mark_point(shape="square", size=58, filled=False, color=palette.SIGNAL, strokeWidth=1.5),
    )


def _layer(name: str) -> alt.Chart:
    return alt.Chart(alt.NamedData(name))


def _amount() -> alt.Axis:
    return alt.Axis(title="", tickCount=5, minExtent=LABEL_WIDTH, maxExtent=LABEL_WIDTH)
