# SPDX-License-Identifier: Apache-2.0
"""Token ids → hidden states: one decoder for every family, its layers stacked and scanned.

Parameters (all layers of a kind in one array, so compile time does not grow with depth):

    embed.weight                              [v, d]
    layers.input_norm.scale                   [l, d]         before attention
    layers.attention.{q,k,v,o}_proj.kernel    [l, in, out]   (.bias [l, out])
    layers.attention.{q,k}_norm.scale         [l, h or n h]  where ``qk_norm``
    layers.attention_out_norm.scale           [l, d]         after attention, where ``norms``
    layers.post_norm.scale                    [l, d]         before the MLP
    layers.mlp_out_norm.scale                 [l, d]         after the MLP, where ``norms``
    layers.mlp.{gate,up,down}_proj.kernel     [l, in, out]   (.bias [l, out])
                                              or the codes of it (``models.codes``)
    layers.mlp.router.kernel                  [l, d, e]      with experts, in place of the MLP's
    layers.mlp.expert_{gate,up,down}.kernel   [l, e, in, out]
    final_norm.scale                          [d]
    lm_head.weight                            [v, d]         absent when tied
    score.weight                              [1, d]         with ``scores``, in place of the head

Adapters are ``lora_a`` [l, in, r] and ``lora_b`` [l, r, out] beside a kernel.
``graphdef, base, adapter = nnx.split(model, nnx.Param, LoRAParam)`` takes the model apart.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from alignax.models.attention import BACKENDS, GLOBAL, SAVED, Layout, masked_attention
from alignax.models.cache import KVCache, mark, require_room, store
from alignax.models.config import DecoderConfig
from alignax.models.experts import ExpertMLP
from alignax.models.layers import CODED, Attention, GatedMLP, RMSNorm, split_key
from alignax.models.rotary import example_lengths, rotary_tables


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
        _wide_products, jax.checkpoint_policies.save_only_these_names(SAVED, CODED)
    ),
    "full": jax.checkpoint_policies.nothing_saveable,
}
"""What the backward pass finds of a layer: all; all but what attention keeps (``attention`` is
computed again); projections and attention; the layer's input only."""


class Embedding(nnx.Module):
    """A [v, d] table."""

    def __init__(self, vocab_size: int, width: int, dtype: Any):
        """Allocate zeros."""
        self.weight: nnx.Variable[Array] = nnx.Param(jnp.zeros((vocab_size, width), dtype))


class Layers(nnx.Module):
    """All layers; called with the parameters of one of them."""

    def __init__(self, config: DecoderConfig, dtype: Any):
        """Allocate the stacked parameters."""

        def norm(place: str) -> Any:
            if config.norms not in (place, "both"):
                return nnx.data(None)
            return RMSNorm((config.layer_count, config.d_model), config, dtype)

        self.input_norm, self.attention_out_norm = norm("before"), norm("after")
        self.attention = Attention(config, dtype)
        self.post_norm, self.mlp_out_norm = norm("before"), norm("after")
        self.mlp = GatedMLP(config, dtype) if config.experts is None else ExpertMLP(config, dtype)
        self.residual_scale = config.residual_scale

    def __call__(
        self, x: Float[Array, "b t d"], rotary: Any, attend: Callable[..., Any], adapter: bool,
        key: Any,
    ) -> tuple[Float[Array, "b t d"], Any]:  # fmt: skip
        """Apply one layer."""
        attention_key, mlp_key = split_key(key, 2)
        inner = _normed(self.input_norm, x)
        values, memory = self.attention(inner, rotary, attend, adapter, attention_key)
        x = x + self._scaled(_normed(self.attention_out_norm, values))
        update = self.mlp(_normed(self.post_norm, x), adapter, mlp_key)
        return x + self._scaled(_normed(self.mlp_out_norm, update)), memory

    def _scaled(self, update: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Scale what is added to the residual stream."""
        return update if self.residual_scale == 1.0 else update * self.residual_scale


def _normed(norm: RMSNorm | None, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    """Apply a norm where there is one."""
    return x if norm is None else norm(x)


class Decoder(nnx.Module):
    """A decoder-only transformer without its output head's product."""

    def __init__(self, config: DecoderConfig, *, dtype: Any = jnp.float32):
        """Allocate zeros in the given dtype."""
        self.config = config
        self.embed = Embedding(config.vocab_size, config.d_model, dtype)
        self.layers = Layers(config, dtype)
        self.final_norm = RMSNorm((config.d_model,), config, dtype)
        self.lm_head = (
            nnx.data(None)
            if config.tie_embeddings or config.scores
            else Embedding(config.vocab_size, config.d_model, dtype)
        )
        self.score = Embedding(1, config.d_model, dtype) if config.scores else nnx.data(None)

    @property
    def head_vd(self) -> Float[Array, "v d"]:
        """Output embedding; the input embedding itself when tied."""
        return (self.embed if self.lm_head is None else self.lm_head).weight[...]

    def logits(self, hidden_nd: Float[Array, "... d"]) -> Float[Array, "... v"]:
        """Apply the output head to final hidden states; float32 whatever the model's dtype."""
        product = partial(jnp.einsum, preferred_element_type=jnp.float32)
        logits_nv = product("...d,vd->...v", hidden_nd, self.head_vd)
        cap = self.config.logit_cap
        return logits_nv if cap is None else cap * jnp.tanh(logits_nv / cap)

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
        """Compute the final, normed hidden states of packed rows, ready for the head's product.

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
        return _read(self, ids_bt, layout, None, adapter, dropout_key, remat, attention)[0]

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
        require_room(cache, ids_bt.shape[1])
        seen_bc = mark(cache.positions, positions_bt, cache.length)
        back_btc = positions_bt[..., None] - seen_bc[:, None]
        mask_btc = (seen_bc[:, None] >= 0) & (back_btc >= 0)

        def remember(memory: Any, window: Any) -> Callable[..., Any]:
            seen_btc = mask_btc if window is None else mask_btc & (back_btc < window)

            def attend(q: Any, k: Any, v: Any) -> Any:
                keys, values = memory
                keys, values = store(keys, values, k, v, cache.length)
                values_btnh = masked_attention(q, keys, values, seen_btc, self.config.attention)
                return values_btnh, (keys, values)

            return attend

        memory = (cache.keys, cache.values)
        lengths_b1 = seen_bc.max(axis=1, keepdims=True) + 1
        places = (jnp.maximum(positions_bt, 0), lengths_b1)
        x, (keys, values) = self._scan(ids_bt, places, remember, adapter, None, "none", memory)
        length = cache.length + ids_bt.shape[1]
        return self._finish(x), KVCache(keys, values, seen_bc, length)

    def _finish(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Apply the last norm, and the divisor of logits, which the head's product then carries."""
        divisor = self.config.logit_divisor
        x = self.final_norm(x)
        return x if divisor == 1.0 else x / divisor

    def _scan(
        self, ids_bt: Any, places: tuple[Any, Any],
        attend: Callable[[Any, Any], Callable[..., Any]], adapter: bool, dropout_key: Any,
        remat: str, memory: Any,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Scan the layers; ``memory`` has a leading layer axis and comes back updated.

        ``places`` are positions and the lengths of their sequences.
        ``attend(memory of the layer, window of the layer)`` makes what the layer attends by.
        """
        config = self.config
        x = self.embed.weight[...][ids_bt]
        if config.embedding_scale != 1.0:
            # Rounded to the dtype of the weights, as those that trained the models did.
            x = x * jnp.asarray(config.embedding_scale, x.dtype)
        rotary, tables = rotary_tables(config, *places)
        graphdef, state = nnx.split(self.layers)

        def layer(x: Any, xs: Any) -> tuple[Any, Any]:
            parameters, index, part, window, table = xs
            key = None if dropout_key is None else dropout_key.fold(index)
            attending = attend(part, window)
            if remat == "attention":
                attending = jax.checkpoint(attending, prevent_cse=False)
            turn = rotary if table is None else jax.tree.map(lambda each: each[table], rotary)
            return nnx.merge(graphdef, parameters)(x, turn, attending, adapter, key)

        if REMAT[remat] is not None:
            layer = jax.checkpoint(layer, policy=REMAT[remat], prevent_cse=False)
        index = jnp.arange(config.layer_count)
        return jax.lax.scan(layer, x, (state, index, memory, _windows(config), tables))


def watched(
    model: Decoder,
    ids_bt: Int[Array, "b t"],
    layout: Layout,
    watch: Callable[..., Any],
    *,
    dropout_key: Any = None,
    attention: str = "tiled",
) -> tuple[Float[Array, "b t d"], Any]:
    """Compute what ``Decoder.hidden`` does, and look at every layer's attention.

    Returns:
        The hidden states, and what ``watch(q, k, v, values)`` gave, with a leading layer axis.
    """
    return _read(model, ids_bt, layout, watch, True, dropout_key, "none", attention)


def _read(
    model: Decoder, ids_bt: Any, layout: Layout, watch: Callable[..., Any] | None, adapter: bool,
    dropout_key: Any, remat: str, attention: str,
) -> tuple[Any, Any]:  # fmt: skip
    """Read packed rows, and watch the attention of every layer if somebody wants to."""
    config = model.config

    def attention_of(_: Any, window: Any) -> Callable[..., Any]:
        def attend(q: Any, k: Any, v: Any) -> Any:
            values = BACKENDS[attention](q, k, v, layout, window, config.attention)
            return values, None if watch is None else watch(q, k, v, values)

        return attend

    places = layout.positions, example_lengths(config, layout.positions, layout.segments)
    x, seen = model._scan(ids_bt, places, attention_of, adapter, dropout_key, remat, None)
    return model._finish(x), seen


def _windows(config: DecoderConfig) -> Any:
    """How far back each layer sees, [l]; None if no layer has a window."""
    if not any(config.windows):
        return None
    return jnp.array([GLOBAL if w is None else w for w in config.windows], jnp.int32)


def random_model(config: DecoderConfig, *, seed: int, dtype: Any = jnp.float32) -> Decoder:
    """Build a decoder with random weights (normal, deviation 0.02; norms' factors 1, biases 0)."""
    model = Decoder(config, dtype=dtype)
    generator = np.random.default_rng(seed)
    for path, leaf in nnx.iter_graph(model):
        if isinstance(leaf, nnx.Param) and path[-1] in ("kernel", "weight"):
            drawn = generator.standard_normal(leaf[...].shape, np.float32) * 0.02
            leaf[...] = jnp.asarray(drawn, dtype)
    return model
