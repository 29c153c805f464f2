"""The compare page computes in the browser what Python computes: the same words, and the same numbers.

Both run over many random sides in a real Chromium.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Page

from cbtrace.site import formats
from cbtrace.site.analysis.comparability import Comparability
from cbtrace.site.analysis.comparison import Comparison, MeasuredRun, compare
from cbtrace.site.analysis.noise import HEADLINE_LEVEL, LEVEL, judge
from cbtrace.site.analysis.run_conditions import RunConditions
from cbtrace.site.analysis.run_values import RUN_VALUES
from cbtrace.site.pages.compare_data import comparison_rules
from cbtrace.site.words import load_words
from pages import chromium

SCRIPTS = ("cbtrace.js", "compare_noise.js", "compare_conditions.js", "comparison.js", "compare_details.js")
JUDGED = 3000
COMPARED = 600


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    source = files("cbtrace.templates") / "assets"
    with chromium() as browser:
        made = browser.new_page()
        made.set_content('<button data-open="keys"></button><dialog id="keys"></dialog>')
        for name in SCRIPTS:
            made.add_script_tag(content=(source / name).read_text(encoding="utf-8"))
        yield made


@pytest.fixture(scope="module")
def rules() -> dict[str, Any]:
    return comparison_rules(load_words())


def asked(page: Page, script: str, value: Any) -> Any:
    """What a function of the page answers. Text travels much faster than values."""
    return json.loads(page.evaluate(f"(text) => JSON.stringify(({script})(JSON.parse(text)))", json.dumps(value)))


def differences(left: Any, right: Any, path: str = "") -> list[str]:
    """Where two answers differ by more than the last digits of numbers: the two exp() need not round alike."""
    if isinstance(left, dict) and isinstance(right, dict):
        keys = sorted(left.keys() ^ right.keys())
        return [f"{path}: {keys}"] * bool(keys) or [
            found for key in left for found in differences(left[key], right[key], f"{path}.{key}")
        ]
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [
            found
            for at, pair in enumerate(zip(left, right, strict=True))
            for found in differences(*pair, f"{path}.{at}")
        ]
    if isinstance(left, float) and isinstance(right, (int, float)) and math.isclose(left, right, rel_tol=1e-12):
        return []
    return [] if left == right else [f"{path}: {left!r} in Python, {right!r} in the browser"]


# Digits --------------------------------------------------------------------------------------------------------------


def test_numbers_have_the_digits_that_python_gives_them(page: Page) -> None:
    source = random.Random(4)
    cases = [source.choice((1, -1)) * source.random() * 10 ** source.randrange(-8, 15) for _ in range(3000)]
    cases += [whole / 8 for whole in range(-2000, 2000)]  # ties among them: 12.25, 150.5
    cases += [0.0, 1.0, 99.95, 99.949, 999.5, 1e15, 0.001, 0.00099]
    theirs = asked(page, "(cases) => cases.map((value) => cbtrace.number(value).replace('-0', '0'))", cases)
    ours = [formats.number(value).replace("-0", "0") for value in cases]
    assert [pair for pair in zip(cases, ours, theirs, strict=True) if pair[1] != pair[2]] == []
    sizes = [abs(value) * 1e3 for value in cases]
    theirs = asked(page, "(cases) => cases.map(cbtrace.bytes)", sizes)
    assert theirs == [formats.size(value).replace("\N{NO-BREAK SPACE}", " ") for value in sizes]
    shares = [abs(value) for value in cases if abs(value) < 1e6]
    theirs = asked(page, "(cases) => cases.map((value) => cbtrace.nearest(value, 'toFixed', 1))", shares)
    assert theirs == [f"{value:.1f}" for value in shares]


# Judgements ----------------------------------------------------------------------------------------------------------


def one_side(source: random.Random) -> list[float | None]:
    """Values of every kind: equal ones, zeros, unknown ones, small and great ones, noise around a mean."""
    runs = source.choice((0, 1, 1, 2, 3, 3, 5, 8, 12))
    scale = source.choice((1.0, 1.0, 1e-6, 1e9, 1e18))
    mean = scale * source.choice((0.0, 1.0, 1.0, 1.05, 10.0, -3.0))
    noise = source.choice((0.0, 0.001, 0.02, 0.5))
    made: list[float | None] = [mean * source.gauss(1, noise) if noise else mean for _ in range(runs)]
    return [None if source.random() < 0.05 else value for value in made]


def test_judgements_are_those_of_python(page: Page, rules: dict[str, Any]) -> None:
    source = random.Random(1)
    cases: list[tuple[list[float | None], list[float | None], Any, float]] = []
    for _ in range(JUDGED):
        a = one_side(source)
        b = [v and v * source.choice((1, 1.01, 1.1)) for v in a] if source.random() < 0.4 else one_side(source)
        cases.append((a, b, source.choice(("lower", "higher", "neither")), source.choice((LEVEL, HEADLINE_LEVEL))))
    ours = [asdict(judge(*case)) for case in cases]
    ask = "([cases, table]) => cases.map((one) => cbtrace.noise.judge(...one, table))"
    theirs = asked(page, ask, [cases, rules["student"]])
    assert differences(ours, theirs) == []
    words = {judged["word"] for judged in ours}
    assert words == {"better", "worse", "changed", "within_noise", "cannot_tell"}


def test_sums_are_exact(page: Page) -> None:
    source = random.Random(2)
    cases = [
        [
            source.choice((1, -1)) * source.random() * 10 ** source.randrange(-18, 18)
            for _ in range(source.randrange(40))
        ]
        for _ in range(1000)
    ]
    cases += [[1e100, 1.0, -1e100], [0.1] * 10, [2.0**53, 1.0, 2.0**-60], [-(2.0**53), -1.0, -(2.0**-60)]]
    theirs = page.evaluate("(cases) => cases.map(cbtrace.noise.exactSum)", cases)
    assert [float(value) for value in theirs] == [math.fsum(case) for case in cases]


# Whole comparisons ---------------------------------------------------------------------------------------------------

CONDITIONS = {
    "hardware.gpu.name": ("NVIDIA H200", "NVIDIA H100", None),
    "hardware.gpu.other_processes": ("0", "1", None),
    "model.dtype": ("bfloat16", "float32"),
    "model.type": ("llama", "gemma2"),
    "software.torch": ("2.13.0", "2.14.0"),
    "workload.digest": ("aa", "bb", None),
    "workload.name": ("default", "other"),
    "requests.sent": ("96 requests [1]", "96 requests [2]", None),
    "measurement.nvml": ("true", "false"),
    "environment.OMP_NUM_THREADS": ("unset", "1"),
    "batching": ("continuous", "static"),
}
SETTINGS = {
    "num_blocks": ("unset", "64", "128", None),
    "max_batch_tokens": ("unset", "256"),
    "max_memory_percent": ("unset", "0.9", "0.5"),
    "max_requests_per_batch": ("unset", "8"),
    "scheduler_type": ("fifo", "prefill_first"),
    "safety_margin": ("unset", "0.1"),
    "use_cuda_graph": ("true", "false"),
}
AUTOMATIC = {"num_blocks": ("1000", "1001", "1009", "1011", "x"), "max_batch_tokens": ("8192", "8191")}
TAGS = {"commit": ("a", "b"), "experiment": ("quick",), "variant": ("baseline", "other")}


def one_run(source: random.Random, like: RunConditions | None, change: float) -> RunConditions:
    """A run like another, but for about ``change`` of its facts."""

    def facts(old: dict[str, Any], choices: dict[str, Any], otherwise: Callable[[str], Any]) -> dict[str, str | None]:
        fresh = not old
        return {
            name: source.choice(values) if fresh or source.random() < change else old.get(name, otherwise(name))
            for name, values in choices.items()
            if source.random() > 0.02
        }

    requested = facts(dict(like.requested) if like else {}, SETTINGS, lambda name: "unset")
    resolved = {
        name: source.choice(AUTOMATIC.get(name, ("0.15",))) if value in (None, "unset") else value
        for name, value in requested.items()
    }
    tags = facts(dict(like.tags) if like else {}, TAGS, lambda name: "a") if source.random() < 0.3 else {}
    return RunConditions(
        requested=requested,
        resolved={name: None if source.random() < 0.03 else value for name, value in resolved.items()},
        conditions=facts(dict(like.conditions) if like else {}, CONDITIONS, lambda name: None),
        tags={name: value or "" for name, value in tags.items()},
        predicted=source.random() < 0.02,
        whole=source.random() > 0.05,
        recorded_ns=1000 * source.randrange(100),
    )


def one_comparison(source: random.Random) -> tuple[list[MeasuredRun], list[MeasuredRun]]:
    first = one_run(source, None, 1)
    sides: list[list[MeasuredRun]] = []
    for side_change in (0.0, source.choice((0.0, 0.03, 0.1, 0.5))):
        base = one_run(source, first, side_change)
        inside = source.choice((0.0, 0.0, 0.0, 0.05))
        noise = source.choice((0.0, 0.005, 0.3))
        means = {key: source.choice((100.0, 100.0, 100.0, 90.0, 110.0)) for key in RUN_VALUES}
        sides.append(
            [
                MeasuredRun(
                    one_run(source, base, inside),
                    {key: mean * source.gauss(1, noise) for key, mean in means.items() if source.random() > 0.02},
                    source.choice(("host_rss", "host_rss", "host_rss", "allocator_reserved", None)),
                )
                for _ in range(source.choice((1, 1, 2, 3, 4, 6)))
            ]
        )
    return sides[0], sides[1]


def as_data(run: MeasuredRun) -> dict[str, Any]:
    """A run as it travels to the browser."""
    said = asdict(run.conditions)
    said["recorded_us"] = said.pop("recorded_ns") // 1000
    return said | {"values": dict(run.values), "memory_scope": run.memory_scope}


def told(made: Comparison) -> dict[str, Any]:
    """What Python says, in the browser's shape."""
    lists = {name: [asdict(it) for it in getattr(made.comparability, name)] for name in ("unlike", "unknown")}
    names: tuple[str, ...] = ("categories", "variables", "same_work", "attributable")
    said = asdict(made.comparability) | lists | {name: getattr(made.comparability, name) for name in names}
    values = [
        {"key": v.value.key, "a": v.a, "b": v.b, "judgement": asdict(v.judgement), "direction": v.direction}
        for v in made.values
    ]
    return {"comparability": said, "values": values, "headline": asdict(made.headline)}


def test_comparisons_are_those_of_python(page: Page, rules: dict[str, Any]) -> None:
    source = random.Random(3)
    cases = [one_comparison(source) for _ in range(COMPARED)]
    data = [[[as_data(run) for run in side] for side in case] for case in cases]
    made = [compare(*case) for case in cases]
    keep = "({key, a, b, judgement, direction}) => ({key, a, b, judgement, direction})"
    ask = f"""([cases, rules]) => cases.map(([a, b]) => {{
      const made = cbtrace.comparison.compare(a, b, rules);
      return {{ ...made, values: made.values.map({keep}) }};
    }})"""
    theirs = asked(page, ask, [data, rules])
    assert differences([told(one) for one in made], theirs) == []
    assert covered(made) == []


def covered(made: list[Comparison]) -> list[str]:
    """Words that no case led to: a comparison of nothing proves nothing."""
    kinds = {one.comparability.kind for one in made}
    roles = {setting.role for one in made for setting in one.comparability.settings}
    heads = {one.headline.word for one in made}
    wanted = {
        *("same", "declared", "one", "resolved", "several", "unlike", "mixed", "predicted"),
        *("changed", "followed", "derived", "inert", "automatic"),
        *("better", "worse", "within_noise", "cannot_tell"),
    }
    return sorted(wanted - kinds - roles - heads)


def test_every_property_of_a_comparability_is_compared() -> None:
    named = {name for name, it in vars(Comparability).items() if isinstance(it, property)}
    assert named == {"unlike", "unknown", "categories", "variables", "same_work", "attributable"}
