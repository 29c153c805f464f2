"""Where the time went: one bar a band, cut into pieces.

Data, by name: ``cuts`` (band, place, piece, order, share), made by :func:`cbtrace.site.pages.where.cut_rows`.
"""

from __future__ import annotations

from typing import Any

import altair as alt

from cbtrace.site.charts import palette
from cbtrace.site.words import Words

LABELS = 120
"""Room for the names of the bands, pixels."""
WIDTH = 600
"""Pixels; the browser puts in the width of the chart's place before it draws."""


def cuts_spec(words: Words) -> Any:
    """The Vega-Lite specification: bars from top to bottom, from all values to the slowest ones."""
    colors = alt.Scale(domain=list(palette.PIECE_COLORS), range=list(palette.PIECE_COLORS.values()))
    share = alt.Axis(title=words("chart.cut_share"), format="%", tickCount=5)
    band = alt.Axis(title=None, labelLimit=LABELS, minExtent=LABELS, maxExtent=LABELS)
    return (
        alt.Chart(alt.NamedData("cuts"), width=WIDTH, height=alt.Step(26))
        .mark_bar(stroke="var(--panel)", strokeWidth=0.5)
        .encode(
            x=alt.X("sum(share):Q", stack="zero", scale=alt.Scale(domain=[0, 1]), axis=share),
            y=alt.Y("band:N", sort=alt.EncodingSortField("place", op="min"), axis=band),
            color=alt.Color("piece:N", scale=colors, legend=None),
            order=alt.Order("order:Q"),
        )
        .properties(usermeta={"margin": LABELS + 24})
        .to_dict()
    )
