"""All chart specifications of a site, by name."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cbtrace.site.charts.comparison import comparison_specs
from cbtrace.site.charts.experiment import experiment_specs
from cbtrace.site.words import Words


@lru_cache
def chart_specs(words: Words) -> dict[str, Any]:
    """Each specification, made and validated once; the runs bring the data. Not to be changed."""
    return comparison_specs(words) | experiment_specs()
