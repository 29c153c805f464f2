"""Makes ``student.json``: Student's quantiles, which Python and the browser both read, so that both say the same.

Run it to write the file again: ``python -m cbtrace.templates.student_table``. For each two-sided level the file has the
logarithm of the quantile at 1/df = 0, 1/128, ..., 1, from the normal distribution to one degree of freedom; between
nodes it is close to straight, so that linear interpolation is within 1e-4 of the quantile.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import NormalDist

import numpy as np

LEVELS = (0.05, 0.01)
INTERVALS = 128
_ABSCISSAE, _WEIGHTS = np.polynomial.legendre.leggauss(96)


def cumulative(t: float, df: float) -> float:
    """Share of Student's distribution below ``t >= 0``, by quadrature.

    With t = sqrt(df) tan(x) the density becomes a power of cos(x), smooth on a bounded interval.
    """
    end = math.atan(t / math.sqrt(df))
    angles = (_ABSCISSAE + 1) * end / 2
    area = float((_WEIGHTS * np.cos(angles) ** (df - 1)).sum()) * end / 2
    beta = math.exp(math.lgamma(0.5) + math.lgamma(df / 2) - math.lgamma((df + 1) / 2))
    return 0.5 + area / beta


def quantile(level: float, df: float) -> float:
    """``t`` beyond which lies ``level`` of the distribution, both tails together, by bisection."""
    if math.isinf(df):
        return NormalDist().inv_cdf(1 - level / 2)
    low, high = 0.0, 1e4
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if cumulative(middle, df) < 1 - level / 2 else (low, middle)
    return (low + high) / 2


def table() -> dict[str, list[float]]:
    """The content of the file, by level."""
    degrees = [math.inf, *(INTERVALS / k for k in range(1, INTERVALS + 1))]
    return {str(level): [round(math.log(quantile(level, df)), 7) for df in degrees] for level in LEVELS}


def main() -> None:
    """Write the file beside this one."""
    text = json.dumps(table(), separators=(",", ":"))
    Path(__file__).with_name("student.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
