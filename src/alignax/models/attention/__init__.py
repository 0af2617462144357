# SPDX-License-Identifier: Apache-2.0
"""Queries, keys and values of packed rows → attended values: one interface, several ways.

Every way is ``attend(q_btnh, k_btkh, v_btkh, layout, window, spec) -> values_btnh`` and equals
``dense_attention``. ``window`` is a traced scalar, so layers with and without one run in one scan.
``check.py`` chooses between them.
"""

from collections.abc import Callable
from typing import Any

from alignax.models.attention.dense import dense_attention, masked_attention
from alignax.models.attention.mask import GLOBAL, PLAIN, SAVED, AttentionSpec, Layout
from alignax.models.attention.tiled import tiled_attention

__all__ = [
    "BACKENDS", "GLOBAL", "PLAIN", "SAVED", "AttentionSpec", "Layout", "dense_attention",
    "masked_attention", "tiled_attention",
]  # fmt: skip


def pallas_attention(*arguments: Any) -> Any:
    """Attend by the Pallas kernels.

    Only their use imports them: it takes a tenth of a second, and what a platform lacks of Pallas
    then concerns no other way.
    """
    from alignax.models.attention.flash import flash_attention

    return flash_attention(*arguments)


BACKENDS: dict[str, Callable[..., Any]] = {
    "dense": dense_attention,
    "tiled": tiled_attention,
    "pallas": pallas_attention,
}
"""Name → way of attending: the oracle, plain JAX, and kernels for TPUs and GPUs."""
