"""Swim lanes: the life of each request along the timeline's window.

Data, by name: ``spans`` (label, rank, state, from, to), made by ``assets/requests.js``.
"""

from __future__ import annotations

from typing import Any

import altair as alt

from cbtrace.site.charts import palette
from cbtrace.site.charts.axes import seconds
from cbtrace.site.words import Words

WIDTH = 800
"""Pixels; the browser puts in the width of the chart's place before it draws."""


def lanes_spec(words: Words) -> Any:
    """The Vega-Lite specification. ``window_from`` and ``window_to`` (seconds) are the window that is shown."""
    window = [alt.param(name=name, value=value) for name, value in (("window_from", 0), ("window_to", 1))]
    colors = alt.Scale(domain=list(palette.STATE_COLORS), range=list(palette.STATE_COLORS.values()))
    scale = alt.Scale(domainMin=alt.expr("window_from"), domainMax=alt.expr("window_to"), nice=False, zero=False)
    lane = alt.Axis(title=words("chart.lanes"), labelLimit=64, minExtent=64, maxExtent=64, grid=True, tickSize=0)
    return (
        alt.Chart(alt.NamedData("spans"), width=WIDTH, height=alt.Step(15))
        .mark_bar(clip=True, height={"band": 0.72})
        .encode(
            x=alt.X("from:Q", scale=scale, axis=seconds(words("chart.time_axis"))),
            x2=alt.X2("to:Q"),
            y=alt.Y("label:N", sort=alt.EncodingSortField("rank", op="min"), axis=lane),
            color=alt.Color("state:N", scale=colors, legend=None),
        )
        .add_params(*window)
        .to_dict()
    )
