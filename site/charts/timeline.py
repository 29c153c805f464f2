"""The timeline of a run: panels over one time axis, and a strip to choose the window.

Data, by name: ``overview`` and ``steps`` (rows of the whole run and of the window), ``window`` (one row), ``limits``
(one row: token budget, KV capacity, where the safety margin begins), ``memory`` (series, bytes) and ``marks``.
``assets/timeline.js`` makes the rows.
"""

from __future__ import annotations

from typing import Any

import altair as alt

from cbtrace.site.charts import palette
from cbtrace.site.charts.axes import BYTES_LABEL, amount, seconds
from cbtrace.site.words import Words

WIDTH = 800
"""Pixels; the browser puts in the width of the page before it draws."""


def timeline_spec(words: Words) -> Any:
    """The Vega-Lite specification, valid for every run.

    The parameters ``window_from`` and ``window_to`` (seconds) are the window that all panels but the first show, and
    ``kv_ticks`` and ``memory_ticks`` the amounts, in bytes, that get a label. ``extremes`` is the opacity of the lines
    that only tell something when a point stands for several steps.
    """
    # Panels that have no data in a run are taken out by their names.
    values = {"window_from": 0, "window_to": 1, "kv_ticks": [0], "memory_ticks": [0], "extremes": 1}
    window = [alt.param(name=name, value=value) for name, value in values.items()]
    scale = alt.Scale(domainMin=alt.expr("window_from"), domainMax=alt.expr("window_to"), nice=False, zero=False)
    x = alt.X("t:Q", scale=scale, axis=seconds(None))
    last_x = alt.X("t:Q", scale=scale, axis=seconds(words("chart.time_axis")))
    panels = alt.vconcat(
        _overview(words),
        _tokens(x, words),
        _kv(x, words),
        _load(x, words),
        _durations(x, words),
        _gpu(x, words),
        _memory(x, words),
        _marks(last_x, words),
        spacing=10,
    )
    apart = panels.resolve_scale(color="independent", shape="independent", strokeDash="independent")
    return apart.add_params(*window).to_dict()


def _overview(words: Words) -> Any:
    x = alt.X("t:Q", scale=alt.Scale(nice=False, zero=False), axis=alt.Axis(title=None, labels=False, ticks=False))
    y = alt.Y("tokens_max:Q", axis=amount(words("chart.overview"), ticks=1))
    whole = (
        alt.Chart(alt.NamedData("overview"))
        .mark_area(interpolate="step-after", color=palette.QUIET, opacity=0.5)
        .encode(x=x, y=y)
    )
    window = (
        alt.Chart(alt.NamedData("window"))
        .mark_rect(color=palette.SIGNAL, opacity=0.18)
        .encode(x=alt.X("from:Q"), x2=alt.X2("to:Q"))
    )
    return alt.layer(whole, window, width=WIDTH, height=32)


def _area(x: alt.X, top: str, bottom: str, color: str, axis: alt.Axis, **extra: Any) -> Any:
    return (
        alt.Chart(alt.NamedData("steps"))
        .mark_area(interpolate="step-after", color=color, opacity=0.85, clip=True, **extra)
        .encode(x=x, y=alt.Y(f"{top}:Q", axis=axis), y2=alt.Y2(f"{bottom}:Q"))
    )


def _line(x: alt.X, field: str, color: str, axis: alt.Axis, **extra: Any) -> Any:
    return (
        alt.Chart(alt.NamedData("steps"))
        .mark_line(interpolate="step-after", color=color, strokeWidth=1.25, clip=True, **extra)
        .encode(x=x, y=alt.Y(f"{field}:Q", axis=axis))
    )


def _limit(field: str, axis: alt.Axis) -> Any:
    return (
        alt.Chart(alt.NamedData("limits"))
        .mark_rule(color=palette.LIMIT, strokeDash=[5, 3])
        .encode(y=alt.Y(f"{field}:Q", axis=axis), opacity=alt.Opacity(f"{field}_opacity:Q", scale=None))
    )


def _tokens(x: alt.X, words: Words) -> Any:
    axis = amount(words("chart.tokens"))
    return alt.layer(
        _area(x, "prefill_top", "zero", palette.PREFILL, axis, invalid=None),
        _area(x, "decode_top", "prefill_top", palette.DECODE, axis, invalid=None),
        _area(x, "recompute_top", "decode_top", palette.RECOMPUTE, axis, invalid=None),
        _area(x, "wasted_top", "recompute_top", palette.WASTED, axis, invalid=None),
        _line(x, "tokens_max", palette.QUIET, axis, opacity=alt.expr("extremes"), invalid=None),
        _limit("token_budget", axis),
        width=WIDTH,
        height=130,
    )


def _kv(x: alt.X, words: Words) -> Any:
    axis = amount(words("chart.kv"), label_expr=BYTES_LABEL, values=alt.expr("kv_ticks"))
    band = (
        alt.Chart(alt.NamedData("limits"))
        .mark_rect(color=palette.RESERVE, opacity=0.35)
        .encode(y=alt.Y("margin_from:Q", axis=axis), y2=alt.Y2("capacity:Q"))
    )
    return alt.layer(
        band,
        _area(x, "used", "zero", palette.USED, axis),
        _area(x, "used_and_cached", "used", palette.CACHED, axis),
        _line(x, "used_min", palette.QUIET, axis, opacity=alt.expr("extremes")),
        _limit("capacity", axis),
        width=WIDTH,
        height=130,
    )


def _band(x: alt.X, top: str, bottom: str, color: str, axis: alt.Axis, **stroke: Any) -> Any:
    """From the smallest to the largest value, both as lines: one line where a point is a single step."""
    return (
        alt.Chart(alt.NamedData("steps"))
        .mark_area(
            interpolate="step-after",
            color=color,
            fillOpacity=0.25,
            stroke=color,
            strokeWidth=1.25,
            clip=True,
            **stroke,
        )
        .encode(x=x, y=alt.Y(f"{top}:Q", axis=axis), y2=alt.Y2(f"{bottom}:Q"))
    )


def _load(x: alt.X, words: Words) -> Any:
    axis = amount(words("chart.requests"), ticks=3)
    return alt.layer(
        _band(x, "waiting_max", "waiting_min", palette.WAITING, axis, strokeDash=[4, 2]),
        _band(x, "active_max", "active_min", palette.ACTIVE, axis),
        width=WIDTH,
        height=80,
    )


def _durations(x: alt.X, words: Words) -> Any:
    axis = amount(words("chart.step_time"), ticks=3)
    return _band(x, "duration_max", "duration_mean", palette.DURATION, axis).properties(width=WIDTH, height=70)


def _gpu(x: alt.X, words: Words) -> Any:
    axis = amount(words("chart.gpu"), ticks=2, label_expr="format(datum.value, '.0%')")
    share = _area(x, "gpu_share", "zero", palette.GPU, axis)
    return share.properties(width=WIDTH, height=44, name="gpu_panel")


def _memory(x: alt.X, words: Words) -> Any:
    axis = amount(words("chart.memory"), label_expr=BYTES_LABEL, values=alt.expr("memory_ticks"))
    names, colors, dashes = ([series[i] for series in palette.MEMORY_SERIES] for i in range(3))
    return (
        alt.Chart(alt.NamedData("memory"))
        .mark_line(interpolate="step-after", strokeWidth=1.25, clip=True)
        .encode(
            x=x,
            y=alt.Y("bytes:Q", axis=axis),
            color=alt.Color("series:N", scale=alt.Scale(domain=names, range=colors), legend=None),
            strokeDash=alt.StrokeDash("series:N", scale=alt.Scale(domain=names, range=dashes), legend=None),
        )
        .properties(width=WIDTH, height=70, name="memory_panel")
    )


def _marks(x: alt.X, words: Words) -> Any:
    kinds = list(palette.MARK_SHAPES)
    shapes = [shape for shape, _ in palette.MARK_SHAPES.values()]
    colors = [color for _, color in palette.MARK_SHAPES.values()]
    return (
        alt.Chart(alt.NamedData("marks"), width=WIDTH, height=alt.Step(16))
        .mark_point(filled=True, size=42, clip=True, opacity=0.9)
        .encode(
            x=x,
            y=alt.Y("label:N", axis=alt.Axis(title=None, minExtent=64, maxExtent=64, labelLimit=64, grid=True)),
            shape=alt.Shape("kind:N", scale=alt.Scale(domain=kinds, range=shapes), legend=None),
            color=alt.Color("kind:N", scale=alt.Scale(domain=kinds, range=colors), legend=None),
        )
    )
