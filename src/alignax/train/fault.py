# SPDX-License-Identifier: Apache-2.0
"""A step whose loss or gradient is not a number → the first bad tensor, and the rows to blame.

Compiled only when it is needed: a step pays nothing for it. What is looked at, in this order:
weights, embedding, attention of each layer, final hidden states, log-probs, gradient. Packed rows
share attention tiles, through which a NaN of one example reaches its neighbours, so every suspect
is read once more alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from alignax.losses import Objective
from alignax.models.attention import Layout
from alignax.models.config import DecoderConfig
from alignax.models.decoder import watched
from alignax.models.layers import DropoutKey
from alignax.models.published import published_name
from alignax.records import PackedBatch
from alignax.train.forward import Network, Weights
from alignax.train.gradients import pair_loss
from alignax.train.step import ReferencePlan, TrainState, dropout_keys, forward_pass

SUSPECTS = 32
"""So many examples are read alone; of more, all that share a row with a bad one are named."""

PARTS = ("q_proj", "k_proj", "v_proj")


class Spot(NamedTuple):
    """Where an example lies in a step's batch: micro-batch, row, slot."""

    micro: int
    row: int
    slot: int


@dataclass(frozen=True)
class Fault:
    """What is known of a bad step.

    Attributes:
        first_bad: The first tensor that is not finite, by its published name.
        blamed: Data set indices of the examples that are not finite on their own; all of the step
            if none is.
    """

    first_bad: str
    blamed: tuple[int, ...]


class FaultFinder:
    """Looks for the cause of bad steps of one run."""

    def __init__(
        self,
        network: Network,
        objective: Objective,
        plan: ReferencePlan,
        config: DecoderConfig,
        place: Callable[[Any], Any],
    ):
        """Compile nothing yet.

        Args:
            network: Static half of the model.
            objective: Loss of the run.
            plan: Where the reference's log-probs come from.
            config: The decoder's shape, for names.
            place: Puts host arrays with a leading micro-batch axis onto the devices.
        """
        self._config = config
        self._place = place
        self._looks = (
            (_build_forward(network, objective, plan), _first_in_forward),
            (_build_backward(network, objective, plan), _first_in_backward),
        )

    def find(
        self, state: TrainState, frozen: Any, live: Weights | None, batch: PackedBatch, cached: Any
    ) -> Fault:
        """Look at a step again; ``batch`` and ``cached`` are host arrays."""
        given = (state, frozen, live)
        keys = dropout_keys(state, batch.ids.shape[0])
        weight = _bad_weight(self._config, state.trainable, frozen)
        for look, name in self._looks:
            spots = self._bad_spots(look, name, given, batch, cached, keys)
            if spots:
                indices = sorted({int(batch.example[spot]) for spot, _ in spots})
                return Fault(weight or spots[0][1], tuple(indices))
        everyone = np.unique(batch.example[batch.example >= 0])
        text = "no tensor of a single micro-batch: the sum over the step overflows"
        return Fault(weight or text, tuple(int(i) for i in everyone))

    def _bad_spots(
        self, look: Any, name: Any, given: Any, batch: PackedBatch, cached: Any, keys: Any
    ) -> list[tuple[Spot, str]]:
        """List the examples that are bad alone (else all suspects) with their first bad tensor."""
        suspects: list[tuple[Spot, str]] = []
        for micro in range(batch.ids.shape[0]):
            part = _micro(batch, micro)
            seen = self._run(look, given, part, _micro(cached, micro), keys[micro])
            for spot in _spots(part, micro):
                # A neighbour in the same row may have spoilt it, or it may be the one.
                text = name(self._config, seen, part, spot.row)
                if text is not None:
                    suspects.append((spot, text))
        if len(suspects) > SUSPECTS:
            return suspects
        guilty = []
        for spot, _ in suspects:
            part = _alone(_micro(batch, spot.micro), spot)
            seen = self._run(look, given, part, _micro(cached, spot.micro), keys[spot.micro])
            text = name(self._config, seen, part, spot.row)
            if text is not None:
                guilty.append((spot, text))
        return guilty or suspects

    def _run(self, look: Any, given: Any, part: PackedBatch, cached: Any, key: Any) -> Any:
        """Run a program over one micro-batch; its flags as host arrays."""
        placed, known = self._place((part, cached))
        return jax.device_get(look(*given, placed, known, key))


def _build_forward(
    network: Network, objective: Objective, plan: ReferencePlan
) -> Callable[..., Any]:
    """Make the forward program: which values are finite, as flags."""
    see = forward_pass(network, objective, plan)

    def forward(state: Any, frozen: Any, live: Any, part: Any, cached: Any, key: Any) -> Any:
        batch, cached = jax.tree.map(lambda x: x[0], (part, cached))
        live = _live(network, plan, state, frozen, live)
        dropout = DropoutKey(key, state.step > 0)
        seen = see(state.trainable, frozen, live, batch, cached, dropout)
        weights = network.join(state.trainable, frozen)
        model = nnx.merge(network.graphdef, weights.base, weights.adapter)
        layout = Layout(batch.positions, batch.segments, batch.branches, batch.tiles)
        hidden, attention = watched(
            model, batch.ids, layout, _flags,
            dropout_key=dropout if network.trains == "adapter" else None,
            attention=network.attention,
        )  # fmt: skip
        return {
            "embedding": _finite(model.embed.weight[...][batch.ids]),
            "attention": attention,
            "hidden": _finite(hidden),
            "pair": {
                field: jnp.isfinite(jnp.broadcast_to(value, seen.valid.shape))
                for field, value in seen.pair._asdict().items()
            },
        }

    return jax.jit(forward)


def _build_backward(
    network: Network, objective: Objective, plan: ReferencePlan
) -> Callable[..., Any]:
    """Make the backward program: which leaves of a micro-batch's gradient are finite."""
    see = forward_pass(network, objective, plan)

    def backward(state: Any, frozen: Any, live: Any, part: Any, cached: Any, key: Any) -> Any:
        batch, cached = jax.tree.map(lambda x: x[0], (part, cached))
        live = _live(network, plan, state, frozen, live)
        dropout = DropoutKey(key, state.step > 0)

        def total(trainable: Any) -> Any:
            seen = see(trainable, frozen, live, batch, cached, dropout)
            return pair_loss(objective.at(state.step), seen, state.memory).loss.total

        loss, gradient = jax.value_and_grad(total)(state.trainable)
        return {"loss": jnp.isfinite(loss), "gradient": finite_leaves(gradient)}

    return jax.jit(backward)


def _live(network: Network, plan: ReferencePlan, state: TrainState, frozen: Any, live: Any) -> Any:
    """Take the reference that the step compared with."""
    moving = plan.mode == "moving"
    return network.join(state.reference, frozen) if moving else live


def _first_in_forward(
    config: DecoderConfig, seen: Mapping[str, Any], part: PackedBatch, row: int
) -> str | None:
    """Name the first value of a row's forward pass that is not finite."""
    used = part.segments[0, row] > 0
    embedding = np.flatnonzero(used & ~seen["embedding"][row])
    if len(embedding):
        token = int(part.ids[0, row, embedding[0]])
        return (
            f"{published_name(config, 'embed.weight', None)}, row {token} (a token of the example)"
        )
    for layer, flags in enumerate(seen["attention"]):
        bad = [bool((used & ~flag[row]).any()) for flag in flags]
        if any(bad):
            return _attention_name(layer, bad)
    if (used & ~seen["hidden"][row]).any():
        return f"model.layers.{len(seen['attention']) - 1}: self_attn.o_proj, mlp or model.norm"
    slots = part.example.shape[2]
    for field, flags in seen["pair"].items():
        own = flags.reshape(-1, slots)[row][part.example[0, row] >= 0]
        if not own.all():
            whose = "lm_head" if field.startswith("policy") else "reference"
            return f"{whose}: {field} (the row's log-probs)"
    return None


def _first_in_backward(
    config: DecoderConfig, seen: Mapping[str, Any], _part: PackedBatch, _row: int
) -> str | None:
    """Name the first leaf of the gradient that is not finite: the backward pass goes down."""
    if not seen["loss"]:
        return "the loss itself (its log-probs are finite)"
    bad = [
        (-1 if layer is None else -layer, path, layer)
        for path, flags in seen["gradient"].items()
        for layer, ok in _by_layer(path, flags)
        if not ok
    ]
    if not bad:
        return None
    _, path, layer = min(bad)
    return (
        f"gradient of {published_name(config, path, layer)} ({len(bad)} gradients are not finite)"
    )


def _bad_weight(config: DecoderConfig, trainable: Any, frozen: Any) -> str | None:
    """Name the first weight that is not finite; embeddings count only where they are read."""
    flags = jax.device_get(_weight_flags((trainable, frozen)))
    for path, values in flags.items():
        for layer, ok in _by_layer(path, values):
            if not ok and not path.startswith("embed."):
                return f"weight {published_name(config, path, layer)}"
    return None


@jax.jit
def _weight_flags(trees: Any) -> dict[str, Any]:
    """Tell of every weight, a layer at a time, whether it is finite."""
    return {path: flags for tree in trees for path, flags in finite_leaves(tree).items()}


def finite_leaves(tree: Any) -> dict[str, Any]:
    """Dotted path → whether all of an array is finite; [l] for one that holds all layers."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        names = [str(getattr(part, "key", getattr(part, "name", ""))) for part in path]
        name = ".".join(part for part in names if part and part != "value")
        axes = tuple(range(1, leaf.ndim)) if name.startswith("layers.") else None
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            found[name] = jnp.isfinite(leaf).all(axes)
    return found


def _by_layer(path: str, flags: Any) -> Iterator[tuple[int | None, bool]]:
    """Go through the flags of one array."""
    if path.startswith("layers."):
        yield from ((layer, bool(ok)) for layer, ok in enumerate(flags))
    else:
        yield None, bool(flags)


def _attention_name(layer: int, bad: Sequence[bool]) -> str:
    """Name what is bad about a layer's attention: ``bad`` is of q, k, v and the values."""
    if all(bad[:3]):
        if layer == 0:
            return "model.layers.0.input_layernorm"
        return f"model.layers.{layer - 1}: self_attn.o_proj or mlp"
    if any(bad[:3]):
        return f"model.layers.{layer}.self_attn.{PARTS[bad.index(True)]}"
    return f"model.layers.{layer}.self_attn (softmax)"


def _flags(*values: Any) -> Any:
    """Tell of every token whether its [b, t, n, h] values are finite; stacked."""
    return jnp.stack([jnp.isfinite(x).all((2, 3)) for x in values])


def _finite(values_btd: Any) -> Any:
    """Tell of every token whether its values are finite."""
    return jnp.isfinite(values_btd).all(-1)


def _micro(tree: Any, index: int) -> Any:
    """Take one micro-batch, its axis kept."""
    return jax.tree.map(lambda x: np.asarray(x)[index : index + 1], tree)


def _spots(part: PackedBatch, micro: int) -> list[Spot]:
    """List the examples of a micro-batch."""
    return [Spot(micro, int(row), int(slot)) for row, slot in np.argwhere(part.example[0] >= 0)]


def _alone(part: PackedBatch, spot: Spot) -> PackedBatch:
    """Blank all other examples of a micro-batch; shapes stay, so nothing is compiled again."""
    kept = np.zeros(part.segments.shape, bool)
    kept[0, spot.row] = part.segments[0, spot.row] == spot.slot + 1
    example = np.full_like(part.example, -1)
    example[0, spot.row, spot.slot] = part.example[0, spot.row, spot.slot]
    return part._replace(
        ids=np.where(kept, part.ids, 0), segments=np.where(kept, part.segments, 0), example=example
    )
