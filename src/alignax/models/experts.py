# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts in place of the MLP: each token passes the few that a router chooses.

Tokens are sorted by expert and multiplied group by group (``jax.lax.ragged_dot``), so no token is
dropped and no expert has a capacity.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from alignax.models.config import DecoderConfig
from alignax.models.layers import ACTIVATIONS


class Stack(nnx.Module):
    """A weight of every layer, or of every expert of every layer."""

    def __init__(self, shape: tuple[int, ...], dtype: Any):
        """Allocate zeros."""
        self.kernel = nnx.Param(jnp.zeros(shape, dtype))


class ExpertMLP(nnx.Module):
    """``Σ weight_e · down_e(activation(gate_e(x)) · up_e(x))`` over the chosen experts e."""

    def __init__(self, config: DecoderConfig, dtype: Any):
        """Allocate the router and all experts."""
        assert config.experts is not None
        layers, count = config.layer_count, config.experts.count

        def stack(name: str) -> Stack:
            return Stack((layers, count, *config.projections[name]), dtype)

        self.router = Stack((layers, config.d_model, count), dtype)
        self.expert_gate = stack("gate_proj")
        self.expert_up = stack("up_proj")
        self.expert_down = stack("down_proj")
        self.experts = config.experts
        self.activation = config.activation

    def __call__(self, x: Float[Array, "b t d"], adapter: bool, key: Any) -> Float[Array, "b t d"]:
        """Apply the experts; adapters do not reach them."""
        del adapter, key
        flat_nd = x.reshape(-1, x.shape[-1])
        chosen_nk, weight_nk = self.route(flat_nd)
        place_m = chosen_nk.reshape(-1)
        order_m = jnp.argsort(place_m, stable=True)
        sizes_e = jnp.bincount(place_m, length=self.experts.count).astype(jnp.int32)
        sorted_md = flat_nd[order_m // self.experts.chosen]
        gate_mf = jax.lax.ragged_dot(sorted_md, self.expert_gate.kernel[...], sizes_e)
        up_mf = jax.lax.ragged_dot(sorted_md, self.expert_up.kernel[...], sizes_e)
        inner_mf = ACTIVATIONS[self.activation](gate_mf) * up_mf
        out_md = jax.lax.ragged_dot(inner_mf, self.expert_down.kernel[...], sizes_e)
        back_m = jnp.argsort(order_m, stable=True)
        out_nkd = out_md[back_m].reshape(*chosen_nk.shape, -1)
        return jnp.einsum("nkd,nk->nd", out_nkd, weight_nk.astype(x.dtype)).reshape(x.shape)

    def route(self, flat_nd: Float[Array, "n d"]) -> tuple[Any, Any]:
        """Choose experts and their weights [n, k], float32, the likeliest first."""
        logits_ne = (flat_nd @ self.router.kernel[...]).astype(jnp.float32)
        chance_ne = jax.nn.softmax(logits_ne, axis=-1)
        weight_nk, chosen_nk = jax.lax.top_k(chance_ne, self.experts.chosen)
        if self.experts.renormalised:
            weight_nk = weight_nk / weight_nk.sum(-1, keepdims=True)
        return chosen_nk, weight_nk
