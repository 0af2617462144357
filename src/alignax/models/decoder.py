# SPDX-License-Identifier: Apache-2.0
"""Token ids → hidden states: one decoder for every family, its layers stacked and scanned.

Parameters (all layers of a kind in one array, so compile time does not grow with depth):

    embed.weight                              [v, d]
    layers.input_norm.scale                   [l, d]
    layers.attention.{q,k,v,o}_proj.kernel    [l, in, out]   (.bias [l, out])
    layers.post_norm.scale                    [l, d]
    layers.mlp.{gate,up,down}_proj.kernel     [l, in, out]   (.bias [l, out])
    final_norm.scale                          [d]
    lm_head.weight                            [v, d]         absent when tied

Adapters are ``lora_a`` [l, in, r] and ``lora_b`` [l, r, out] beside a kernel.
``graphdef, base, adapter = nnx.split(model, nnx.Param, LoRAParam)`` takes the model apart.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from alignax.models.attention import BACKENDS, GLOBAL, SAVED, Layout, masked_attention
from alignax.models.cache import KVCache, extend
from alignax.models.config import DecoderConfig
from alignax.models.layers import GatedMLP, Linear, RMSNorm, rotary_angles, rotate, split_key


def _wide_products(primitive: Any, *operands: Any, **parameters: Any) -> bool:
    """Keep a projection's output, but not an adapter's ``(x A) B``: its inner width is small.

    The product is nearly free to repeat and as large as the projection's own output.
    """
    if not jax.checkpoint_policies.dots_with_no_batch_dims_saveable(
        primitive, *operands, **parameters
    ):
        return False
    left, right = operands
    (inner, _), _ = parameters["dimension_numbers"]
    width_in = left.shape[inner[0]]
    return 4 * width_in >= right.size // width_in


REMAT: dict[str, Callable[..., Any] | None] = {
    "none": None,
    "attention": None,
    "dots": jax.checkpoint_policies.save_from_both_policies(
        _wide_products, jax.checkpoint_policies.save_only_these_names(SAVED)
    ),
    "full": jax.checkpoint_policies.nothing_saveable,
}
"""What the backward pass finds of a layer: all; all but what attention keeps (``attention`` is
computed again); projections and attention; the layer's input only."""


class Embedding(nnx.Module):
    """A [v, d] table."""

    def __init__(self, vocab_size: int, width: int, dtype: Any):
        """Allocate zeros."""
        self.weight = nnx.Param(jnp.zeros((vocab_size, width), dtype))


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: DecoderConfig, dtype: Any):
        """Allocate the four projections."""

        def linear(name: str) -> Linear:
            widths = config.projections[name]
            return Linear(config.layer_count, *widths, bias=config.attention_bias, dtype=dtype)

        self.q_proj = linear("q_proj")
        self.k_proj = linear("k_proj")
        self.v_proj = linear("v_proj")
        self.o_proj = linear("o_proj")
        self.head_dim = config.head_dim

    def __call__(
        self, x: Float[Array, "b t d"], rotary: Any, attend: Callable[..., Any], adapter: bool,
        key: Any,
    ) -> tuple[Float[Array, "b t d"], Any]:  # fmt: skip
        """Project, rotate, ``attend(q, k, v) → (values, memory)``, project."""
        b, t, _ = x.shape
        q_key, k_key, v_key, o_key = split_key(key, 4)
        q = self.q_proj(x, adapter, q_key).reshape(b, t, -1, self.head_dim)
        k = self.k_proj(x, adapter, k_key).reshape(b, t, -1, self.head_dim)
        v = self.v_proj(x, adapter, v_key).reshape(b, t, -1, self.head_dim)
        with jax.named_scope("attention"):
            values, memory = attend(rotate(q, *rotary), rotate(k, *rotary), v)
        return self.o_proj(values.reshape(b, t, -1), adapter, o_key), memory


class Layers(nnx.Module):
    """All layers; called with the parameters of one of them."""

    def __init__(self, config: DecoderConfig, dtype: Any):
        """Allocate the stacked parameters."""
        shape = (config.layer_count, config.d_model)
        self.input_norm = RMSNorm(shape, config.norm_eps, dtype)
        self.attention = Attention(config, dtype)
        self.post_norm = RMSNorm(shape, config.norm_eps, dtype)
        self.mlp = GatedMLP(config, dtype)

    def __call__(
        self, x: Float[Array, "b t d"], rotary: Any, attend: Callable[..., Any], adapter: bool,
        key: Any,
    ) -> tuple[Float[Array, "b t d"], Any]:  # fmt: skip
        """Apply one layer."""
        attention_key, mlp_key = split_key(key, 2)
        values, memory = self.attention(self.input_norm(x), rotary, attend, adapter, attention_key)
        x = x + values
        return x + self.mlp(self.post_norm(x), adapter, mlp_key), memory


class Decoder(nnx.Module):
    """A decoder-only transformer without its output head's product."""

    def __init__(self, config: DecoderConfig, *, dtype: Any = jnp.float32):
        """Allocate zeros in the given dtype."""
        self.config = config
        self.embed = Embedding(config.vocab_size, config.d_model, dtype)
        self.layers = Layers(config, dtype)
        self.final_norm = RMSNorm((config.d_model,), config.norm_eps, dtype)
        self.lm_head = (
            nnx.data(None)
            if config.tie_embeddings
            else Embedding(config.vocab_size, config.d_model, dtype)
        )

    @property
    def head_vd(self) -> Float[Array, "v d"]:
        """Output embedding; the input embedding itself when tied."""
        return (self.embed if self.lm_head is None else self.lm_head).weight[...]

    @property
    def dtype(self) -> Any:
        """Dtype of the base weights."""
        return self.embed.weight[...].dtype

    def hidden(
        self,
        ids_bt: Int[Array, "b t"],
        positions_bt: Int[Array, "b t"],
        segments_bt: Int[Array, "b t"],
        branches_bt: Int[Array, "b t"],
        tiles_bm2: Int[Array, "b m 2"],
        *,
        adapter: bool = True,
        dropout_key: Any = None,
        remat: str = "none",
        attention: str = "tiled",
    ) -> Float[Array, "b t d"]:
        """Compute the final, normed hidden states of packed rows.

        Args:
            ids_bt: Token ids.
            positions_bt: Rotary positions.
            segments_bt: 1 + slot of the example; 0 in padding.
            branches_bt: 0 for a prompt, 1 … for answers.
            tiles_bm2: Live attention tiles (unused by dense attention).
            adapter: Whether the adapter takes part.
            dropout_key: ``DropoutKey`` of the adapter's dropout; None for none.
            remat: Key of ``REMAT``.
            attention: Key of ``models.attention.BACKENDS``.
        """
        layout = Layout(positions_bt, segments_bt, branches_bt, tiles_bm2)
        spec = self.config.attention

        def attention_of(_: Any, window: Any) -> Callable[..., Any]:
            return lambda q, k, v: (BACKENDS[attention](q, k, v, layout, window, spec), None)

        x, _ = self._scan(ids_bt, positions_bt, attention_of, adapter, dropout_key, remat, None)
        return self.final_norm(x)

    def decode(
        self,
        ids_bt: Int[Array, "b t"],
        positions_bt: Int[Array, "b t"],
        cache: KVCache,
        *,
        adapter: bool = True,
    ) -> tuple[Float[Array, "b t d"], KVCache]:
        """Read further tokens of ordinary sequences: a prompt at once, or one token a call.

        Args:
            ids_bt: Token ids.
            positions_bt: Their positions; -1 marks padding, which nothing attends to.
            cache: What was read so far; must have room for t more tokens.
            adapter: Whether the adapter takes part.

        Returns:
            Final hidden states and the grown cache.
        """
        seen_bc = extend(cache.positions, positions_bt, cache.length)
        back_btc = positions_bt[..., None] - seen_bc[:, None]
        mask_btc = (seen_bc[:, None] >= 0) & (back_btc >= 0)

        def remember(memory: Any, window: Any) -> Callable[..., Any]:
            seen_btc = mask_btc if window is None else mask_btc & (back_btc < window)

            def attend(q: Any, k: Any, v: Any) -> Any:
                keys, values = (
                    extend(old, new, cache.length) for old, new in zip(memory, (k, v), strict=True)
                )
                values_btnh = masked_attention(q, keys, values, seen_btc, self.config.attention)
                return values_btnh, (keys, values)

            return attend

        memory = (cache.keys, cache.values)
        x, (keys, values) = self._scan(
            ids_bt, jnp.maximum(positions_bt, 0), remember, adapter, None, "none", memory
        )
        length = cache.length + ids_bt.shape[1]
        return self.final_norm(x), KVCache(keys, values, seen_bc, length)

    def _scan(
        self, ids_bt: Any, positions_bt: Any, attend: Callable[[Any, Any], Callable[..., Any]],
        adapter: bool, dropout_key: Any, remat: str, memory: Any,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Scan the layers; ``memory`` has a leading layer axis and comes back updated.

        ``attend(memory of the layer, window of the layer)`` makes what the layer attends by.
        """
        config = self.config
        windows = None
        if any(w is not None for w in config.windows):
            windows = jnp.array([GLOBAL if w is None else w for w in config.windows], jnp.int32)
        x = self.embed.weight[...][ids_bt]
        rotary = rotary_angles(
            positions_bt, config.head_dim, config.rope_theta, config.rope_scaling
        )
        graphdef, state = nnx.split(self.layers)

        def layer(x: Any, xs: Any) -> tuple[Any, Any]:
            parameters, index, part, window = xs
            key = None if dropout_key is None else dropout_key.fold(index)
            attending = attend(part, window)
            if remat == "attention":
                attending = jax.checkpoint(attending, prevent_cse=False)
            return nnx.merge(graphdef, parameters)(x, rotary, attending, adapter, key)

        if REMAT[remat] is not None:
            layer = jax.checkpoint(layer, policy=REMAT[remat], prevent_cse=False)
        index = jnp.arange(config.layer_count)
        return jax.lax.scan(layer, x, (state, index, memory, windows))


def random_model(config: DecoderConfig, *, seed: int, dtype: Any = jnp.float32) -> Decoder:
    """Build a decoder with random weights (normal, deviation 0.02; norms 1, biases 0)."""
    model = Decoder(config, dtype=dtype)
    generator = np.random.default_rng(seed)
    for path, leaf in nnx.iter_graph(model):
        if isinstance(leaf, nnx.Param) and path[-1] in ("kernel", "weight"):
            drawn = generator.standard_normal(leaf[...].shape, np.float32) * 0.02
            leaf[...] = jnp.asarray(drawn, dtype)
    return model
