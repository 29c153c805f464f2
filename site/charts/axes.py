"""Axes that several charts share: time, bytes and aligned quantities."""

from __future__ import annotations

from typing import Any

import altair as alt

LABEL_WIDTH = 64
"""Room for the labels of a vertical axis in pixels: the same in every panel, so that their plots align."""

BYTES_LABEL = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '.3~g') + ' GiB' : "
    "datum.value >= 1048576 ? format(datum.value / 1048576, '.3~g') + ' MiB' : "
    "format(datum.value / 1024, '.3~g') + ' KiB'"
)


def amount(title: str, *, ticks: int = 4, label_expr: str | None = None, values: Any = None) -> alt.Axis:
    """A vertical axis with room for its labels; ``values`` chooses them."""
    wanted = {"labelExpr": label_expr, "values": values}
    extra = {name: value for name, value in wanted.items() if value is not None}
    return alt.Axis(title=title, tickCount=ticks, minExtent=LABEL_WIDTH, maxExtent=LABEL_WIDTH, **extra)


def seconds(title: str | None) -> alt.Axis:
    """The shared time axis; without a title its labels are left out too."""
    return alt.Axis(title=title, labels=title is not None, ticks=title is not None, grid=True)
