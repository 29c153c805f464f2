"""The vendored Vega bundle is what vl-convert writes, and the specifications are valid and free of inline data."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import altair
import vl_convert

from cbtrace.site.charts.specs import chart_specs
from cbtrace.site.words import load_words


def test_the_bundle_is_current() -> None:
    vendored = (files("cbtrace.templates") / "assets" / "vendor" / "vega.js").read_text(encoding="utf-8")
    assert vendored == vl_convert.javascript_bundle(), "run python -m cbtrace.templates.vendor_vega"


def names_of(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["data"]["name"]} if isinstance(node.get("data"), dict) and "name" in node["data"] else set()
        return own.union(*(names_of(inner) for inner in node.values()))
    return set().union(*(names_of(inner) for inner in node)) if isinstance(node, list) else set()


def test_specifications_name_their_data_and_hold_none() -> None:
    specs = chart_specs(load_words())
    assert {"distribution", "difference", "pairs"} <= set(specs)
    assert names_of(specs["pairs"]) == {"pairs"}
    for spec in specs.values():
        assert "datasets" not in spec
        altair.Chart.from_dict(spec, validate=True)


def test_specifications_are_the_same_every_time() -> None:
    words = load_words()
    assert json.dumps(chart_specs(words), sort_keys=True) == json.dumps(chart_specs(words), sort_keys=True)


def test_vega_lite_compiles_every_specification() -> None:
    names = set().union(*(names_of(spec) for spec in chart_specs(load_words()).values()))
    for spec in chart_specs(load_words()).values():
        compiled = vl_convert.vegalite_to_vega(json.dumps(spec | {"datasets": {name: [] for name in names}}))
        assert compiled["marks"]
