# SPDX-License-Identifier: Apache-2.0
"""``"0.8*sigmoid + 0.2*bco_pair(beta=0.05)"`` → weights, names and settings of losses."""

import re
from typing import Any, NamedTuple

from alignax.errors import UsageError

_NUMBER = r"\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+"
_PART = re.compile(
    rf"\s*(?:(?P<weight>{_NUMBER})\s*\*\s*)?(?P<name>[A-Za-z_]\w*)\s*(?:\((?P<inside>[^()]*)\))?\s*"
)


class Part(NamedTuple):
    """One loss of a sum: its weight, its name, and what stands in its parentheses."""

    weight: float
    name: str
    settings: dict[str, Any]


def split_sum(text: str) -> list[Part]:
    """Read a loss, or a sum of losses with optional weights and settings.

    Raises:
        UsageError: The text is no such sum.
    """
    parts, place = [], 0
    while True:
        match = _PART.match(text, place)
        if match is None or match.end() < len(text) and text[match.end()] != "+":
            raise UsageError(
                f"loss.type: {text!r} is neither a loss nor a sum of losses",
                hint="write a name, or a sum like 0.8*sigmoid + 0.2*bco_pair(beta=0.05)",
            )
        settings = _settings(match["inside"] or "", text)
        parts.append(Part(float(match["weight"] or 1.0), match["name"], settings))
        place = match.end() + 1
        if match.end() == len(text):
            return parts


def _settings(inside: str, text: str) -> dict[str, Any]:
    """Read ``knob=value, knob=value``."""
    settings: dict[str, Any] = {}
    for item in filter(None, (item.strip() for item in inside.split(","))):
        name, sign, value = (word.strip() for word in item.partition("="))
        if not (sign and name and value) or name in settings:
            raise UsageError(f"loss.type: {text!r}: {item!r} is no setting=value of its own")
        settings[name] = _value(value)
    return settings


def _value(text: str) -> float | bool | str:
    """Read true, false, a number or a word."""
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text)
    except ValueError:
        return text
