# SPDX-License-Identifier: Apache-2.0
"""Sums with weights → merged sums → means, divided once."""

from collections.abc import Mapping
from functools import reduce
from operator import add

from alignax.records import Weighted


def merge(*parts: Mapping[str, Weighted]) -> dict[str, Weighted]:
    """Add up the parts name by name; a name may be absent from some parts."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: reduce(add, (part[name] for part in parts if name in part)) for name in names}


def means(metrics: Mapping[str, Weighted]) -> dict[str, float]:
    """Divide each sum by its weight; NaN where nothing was weighed."""
    return {name: value.mean for name, value in metrics.items()}
