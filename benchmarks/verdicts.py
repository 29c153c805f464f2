"""False alarms and power of the verdicts of ``cbtrace diff``, by simulation: ``python benchmarks/verdicts.py``.

Prints the tables of docs/diff.md. Nothing is recorded: values of runs are drawn, and judged as those of traces are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cbtrace.site.analysis.noise import HEADLINE_LEVEL, LEVEL, judge
from noises import Floats, heavy_tailed, log_normal, outliers, two_modes, wandering, warming

Draw = Callable[[np.random.Generator, int, int], Floats]
MANY = 20_000
REPEATS = (2, 3, 4, 5, 7, 10)


def normal(noise: float) -> Draw:
    return lambda source, many, runs: 1 + noise * source.standard_normal((many, runs))


def words(a: Floats, b: Floats, level: float = LEVEL) -> dict[str, float]:
    """Shares of the words over all simulations, in per cent."""
    found = [judge(x.tolist(), y.tolist(), "lower", level).word for x, y in zip(a, b, strict=True)]
    return {word: 100 * found.count(word) / len(found) for word in ("better", "worse", "within_noise", "cannot_tell")}


def alarms(draw: Draw, runs: int, *, in_turn: bool) -> float:
    """Better or worse, of runs of one setting: recorded in turn, or all of A first."""
    values = draw(np.random.default_rng(runs), MANY, 2 * runs)
    a, b = (values[:, ::2], values[:, 1::2]) if in_turn else (values[:, :runs], values[:, runs:])
    found = words(a, b)
    return found["better"] + found["worse"]


def false_alarms() -> None:
    print("False alarms in per cent, by repeats a side\n")
    print("| noise | " + " | ".join(map(str, REPEATS)) + " |\n|---|" + "--:|" * len(REPEATS))
    rows: list[tuple[str, Draw, bool]] = [
        ("normal", normal(0.02), True),
        ("log-normal, sigma 0.3", log_normal, True),
        ("heavy tails (Student's t, 2 degrees)", heavy_tailed, True),
        ("one run of ten disturbed", outliers, True),
        ("two modes, like heads and tails", two_modes, True),
        ("slower by 1 % a run, recorded in turn", warming, True),
        ("random walk, recorded in turn", wandering, True),
        ("slower by 1 % a run, all of A first", warming, False),
        ("random walk, all of A first", wandering, False),
    ]
    for name, draw, in_turn in rows:
        rates = " | ".join(f"{alarms(draw, runs, in_turn=in_turn):.1f}" for runs in REPEATS)
        print(f"| {name} | {rates} |")


def power() -> None:
    print("\nA true change of 5 %: found, in per cent\n")
    print(
        "| noise of a run | " + " | ".join(map(str, REPEATS)) + " | headline, 5 |\n|---|" + "--:|" * (len(REPEATS) + 1)
    )
    for noise in (0.005, 0.01, 0.02, 0.03):
        cells = [sides(noise, runs, 1.05)["worse"] for runs in REPEATS]
        cells.append(sides(noise, 5, 1.05, HEADLINE_LEVEL)["worse"])
        print(f"| {100 * noise:g} % | " + " | ".join(f"{cell:.0f}" for cell in cells) + " |")
    print("\nFive repeats a side: what is said, in per cent\n")
    print("| noise of a run | true change | worse | within noise | cannot tell | better |\n|---|---|--:|--:|--:|--:|")
    for noise in (0.005, 0.01, 0.02, 0.03):
        for change in (0.0, 0.02, 0.05):
            found = sides(noise, 5, 1 + change)
            cells = [found[word] for word in ("worse", "within_noise", "cannot_tell", "better")]
            print(f"| {100 * noise:g} % | {100 * change:g} % | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |")


def sides(noise: float, runs: int, factor: float, level: float = LEVEL) -> dict[str, float]:
    """What is said of two sides whose means differ by a factor."""
    source = np.random.default_rng(runs)
    a, b = (normal(noise)(source, MANY, runs) for _ in range(2))
    return words(a, factor * b, level)


if __name__ == "__main__":
    false_alarms()
    power()
