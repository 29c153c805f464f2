"""Run-to-run noise of kinds that are met: what many repeats of one setting measure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def normal(source: np.random.Generator, many: int, runs: int) -> Floats:
    return 1 + 0.02 * source.standard_normal((many, runs))


def log_normal(source: np.random.Generator, many: int, runs: int) -> Floats:
    return np.exp(0.3 * source.standard_normal((many, runs)))


def heavy_tailed(source: np.random.Generator, many: int, runs: int) -> Floats:
    return 1 + 0.02 * source.standard_t(2, (many, runs))


def outliers(source: np.random.Generator, many: int, runs: int) -> Floats:
    """One run of ten is disturbed."""
    return 1 + 0.01 * source.standard_normal((many, runs)) + 0.2 * (source.random((many, runs)) < 0.1)


def two_modes(source: np.random.Generator, many: int, runs: int) -> Floats:
    return 1 + 0.001 * source.standard_normal((many, runs)) + 0.1 * (source.random((many, runs)) < 0.5)


def warming(source: np.random.Generator, many: int, runs: int) -> Floats:
    """The machine gets slower by 1 % a run, one after the other."""
    return 1 + 0.01 * np.arange(runs) + 0.005 * source.standard_normal((many, runs))


def wandering(source: np.random.Generator, many: int, runs: int) -> Floats:
    """Each run is near the one before it."""
    return np.asarray(1 + np.cumsum(0.01 * source.standard_normal((many, runs)), axis=1))
