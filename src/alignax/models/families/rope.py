# SPDX-License-Identifier: Apache-2.0
"""Rotary settings of a ``config.json`` ↔ the decoder's, in the spelling of either era.

Before transformers 5 the base was ``rope_theta`` and its stretch ``rope_scaling``; since then both
are in ``rope_parameters``.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from alignax.models.config import DecoderConfig, RopeScaling

DEFAULT_THETA = 10_000.0
_ORIGINAL = "original_max_position_embeddings"
_NEEDED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
}
"""Rotary scaling → keys without which it means nothing."""


class Rope(NamedTuple):
    """Base, stretch, and rotated entries of a head (None for all)."""

    theta: float
    scaling: RopeScaling | None
    width: int | None


def read_rope(fields: Any, positions: int, head_dim: int, known: tuple[str, ...]) -> Rope:
    """Read base, stretch and width of the rotary frequencies.

    Args:
        fields: ``Fields`` of the configuration.
        positions: Longest sequence that the model was made for.
        head_dim: Width of a head.
        known: Scalings that the family uses.
    """
    config, problems = fields.config, fields.problems
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    nested = config.get("rope_parameters") or {}
    if not isinstance(rope, Mapping) or not isinstance(nested, Mapping):
        problems.append(f"rope_scaling or rope_parameters must be an object, got {rope!r}")
        return Rope(DEFAULT_THETA, None, None)
    merged = dict(config) | {k: v for k, v in {**nested, **rope}.items() if v is not None}
    reader = type(fields)(merged, problems)
    theta = reader.number("rope_theta", DEFAULT_THETA)
    width = _width(merged, head_dim, problems)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    # Phi-3 called its scaling so before it had a name of its own.
    if "longrope" in known and kind in ("su", "yarn"):
        kind = "longrope"
    if kind == "default":
        return Rope(theta, None, width)
    if kind not in known:
        problems.append(
            f"rope type {kind!r} is not supported ({', '.join(('default', *known))} are)"
        )
        return Rope(theta, None, width)
    if missing := [key for key in _NEEDED[kind] if merged.get(key) is None]:
        problems.append(f"rope type {kind!r} needs {', '.join(missing)}, got {dict(rope)}")
        return Rope(theta, None, width)
    return Rope(theta, _scaling(kind, reader, positions, width or head_dim), width)


def _width(merged: Mapping[str, Any], head_dim: int, problems: list[str]) -> int | None:
    """Read how much of a head is rotated."""
    share = merged.get("partial_rotary_factor")
    if share is None or share == 1:
        return None
    width = int(head_dim * share) if isinstance(share, int | float) else 0
    if width < 2 or width > head_dim or width % 2:
        problems.append(f"partial_rotary_factor {share!r} rotates no even part of {head_dim}")
        return None
    return width


def _scaling(kind: Any, fields: Any, positions: int, width: int) -> RopeScaling:
    """Read the stretch; its keys are there."""
    merged = fields.config
    if kind == "linear":
        return RopeScaling("linear", fields.number("factor", 1.0))
    if kind == "dynamic":
        return RopeScaling("dynamic", fields.number("factor", 1.0), original_positions=positions)
    original = fields.size(_ORIGINAL, default=positions or 1)
    if kind == "llama3":
        factor, low, high = (fields.number(key, 1.0) for key in _NEEDED["llama3"])
        return RopeScaling("llama3", factor, low, high, original)
    ratio = positions / original if original else 1.0
    factor = fields.number("factor", max(ratio, 1.0))
    if kind == "yarn":
        return RopeScaling(
            "yarn",
            factor,
            original_positions=original,
            beta_fast=fields.number("beta_fast", 32.0),
            beta_slow=fields.number("beta_slow", 1.0),
            truncate=fields.flag("truncate", True),
            magnitude=fields.number("attention_factor", yarn_magnitude(merged, factor)),
        )
    growth = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 < original else 1.0
    return RopeScaling(
        "longrope",
        factor,
        original_positions=original,
        short_factors=_factors(fields, "short_factor", width // 2),
        long_factors=_factors(fields, "long_factor", width // 2),
        magnitude=fields.number("attention_factor", growth),
    )


def yarn_magnitude(merged: Mapping[str, Any], factor: float) -> float:
    """YaRN's factor of cosines and sines where the configuration does not state it."""

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    over, under = merged.get("mscale"), merged.get("mscale_all_dim")
    return scale(over) / scale(under) if over and under else scale(1.0)


def _factors(fields: Any, key: str, count: int) -> tuple[float, ...]:
    """Read one set of divisors."""
    value = fields.config[key]
    if isinstance(value, list) and len(value) == count:
        return tuple(map(float, value))
    fields.problems.append(f"{key} must list {count} numbers, got {value!r}")
    return (1.0,) * count


def scaling_json(scaling: RopeScaling | None) -> dict[str, Any]:
    """Write the stretch of rotary frequencies."""
    if scaling is None:
        return {"rope_type": "default"}
    written: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind in ("llama3", "yarn", "longrope"):
        written[_ORIGINAL] = scaling.original_positions
    if scaling.kind == "llama3":
        written["low_freq_factor"] = scaling.low_freq_factor
        written["high_freq_factor"] = scaling.high_freq_factor
    if scaling.kind in ("yarn", "longrope"):
        written["attention_factor"] = scaling.magnitude
    if scaling.kind == "yarn":
        written |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
        written["truncate"] = scaling.truncate
    if scaling.kind == "longrope":
        written["short_factor"] = list(scaling.short_factors)
        written["long_factor"] = list(scaling.long_factors)
    return written


def rope_json(config: DecoderConfig) -> dict[str, Any]:
    """Write the rotary settings in both spellings."""
    rope = scaling_json(config.rope_scaling)
    partial = {}
    if config.rotary_dim is not None:
        partial = {"partial_rotary_factor": config.rotary_dim / config.head_dim}
    return {
        "rope_theta": config.rope_theta,
        "rope_scaling": rope if config.rope_scaling else None,
        "rope_parameters": rope | {"rope_theta": config.rope_theta} | partial,
        **partial,
    }
