# SPDX-License-Identifier: Apache-2.0
"""PEFT's ranks and alphas of single modules → one rank and one alpha for all, the same function.

Narrower matrices are filled up with zeros, which neither change the update nor are trained (where
A's columns and B's rows are both zero, so are their gradients). What a module's own alpha and rank
scale by, beside the whole adapter's scale, goes into B.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from alignax.errors import ModelError

PREFIX = "base_model.model."
_SIDE = re.compile(r"\.lora_[AB]\.weight$")


def module_value(patterns: Mapping[str, Any], tensor: str, default: Any) -> Any:
    """Look up what a configuration says of one tensor's module; the first pattern wins.

    A pattern is a regular expression for the end of a module's name, or with ``^`` for all of it.

    Raises:
        ModelError: A pattern is no regular expression, or its value no positive number.
    """
    module = _SIDE.sub("", tensor).removeprefix(PREFIX)
    for pattern, value in patterns.items():
        expression = pattern if pattern.startswith("^") else rf"(.*\.)?({pattern})$"
        try:
            found = re.match(expression, module)
        except re.error as error:
            raise ModelError(
                f"pattern {pattern!r} of an adapter cannot be read: {error}"
            ) from error
        if found and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
            raise ModelError(f"pattern {pattern!r} of an adapter has the value {value!r}")
        if found:
            return value
    return default


def ranks_of(config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Tensor → the rank that the configuration gives it."""
    patterns = config.get("rank_pattern") or {}
    return {name: int(module_value(patterns, name, config["r"])) for name in tensors}


def levelled(
    config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], int]:
    """Give all modules the widest rank and the adapter's own alpha.

    Returns:
        The tensors, and their rank.
    """
    ranks = ranks_of(config, tensors)
    widest = max(ranks.values())
    alpha = config.get("lora_alpha", config["r"])
    alphas = config.get("alpha_pattern") or {}

    def scale(alpha: float, rank: int) -> float:
        return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)

    found = {}
    for name, tensor in tensors.items():
        is_a, missing = ".lora_A." in name, widest - ranks[name]
        if missing:
            tensor = np.pad(tensor, ((0, missing), (0, 0)) if is_a else ((0, 0), (0, missing)))
        factor = scale(module_value(alphas, name, alpha), ranks[name]) / scale(alpha, widest)
        found[name] = tensor if is_a or factor == 1.0 else tensor * np.float32(factor)
    return found, widest
