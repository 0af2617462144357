# SPDX-License-Identifier: Apache-2.0
"""Arrays → places on a device mesh with the axes ``data``, ``fsdp`` and ``tensor``.

Rows of a batch are split over ``data`` and ``fsdp``; weights over ``fsdp`` (their width of the
residual stream) and ``tensor`` (heads, MLP, vocabulary: Shoeybi et al. 2019). A dimension that an
axis does not divide stays whole. The compiler derives the collectives.
"""

from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alignax.errors import UsageError
from alignax.models.decoder import Decoder

AXES = ("data", "fsdp", "tensor")

LAYOUT: dict[str, tuple[str | None, ...]] = {
    "embed.weight": ("tensor", "fsdp"),
    "lm_head.weight": ("tensor", "fsdp"),
    **{f"{n}.kernel": (None, "fsdp", "tensor") for n in ("q_proj", "k_proj", "v_proj")},
    **{f"{n}.kernel": (None, "fsdp", "tensor") for n in ("gate_proj", "up_proj")},
    **{f"{n}.kernel": (None, "tensor", "fsdp") for n in ("o_proj", "down_proj")},
    **{f"{n}.kernel": (None, None, "fsdp", "tensor") for n in ("expert_gate", "expert_up")},
    "expert_down.kernel": (None, None, "tensor", "fsdp"),
    **{f"{n}.qvalue": (None, "tensor", "fsdp") for n in ("q_proj", "k_proj", "v_proj")},
    **{f"{n}.qvalue": (None, "tensor", "fsdp") for n in ("gate_proj", "up_proj")},
    **{f"{n}.qvalue": (None, "fsdp", "tensor") for n in ("o_proj", "down_proj")},
    **{f"{n}_proj.scale": (None, "tensor", None) for n in ("q", "k", "v", "gate", "up")},
    **{f"{n}_proj.scale": (None, "fsdp", None) for n in ("o", "down")},
}
"""Last two parts of a parameter's name → mesh axis of each dimension; all else is whole."""


def build_mesh(data: int, fsdp: int, tensor: int) -> Mesh:
    """Arrange the first data × fsdp × tensor devices.

    Raises:
        UsageError: There are fewer devices.
    """
    wanted, devices = data * fsdp * tensor, jax.devices()
    if wanted > len(devices):
        raise UsageError(
            f"mesh.data {data} × mesh.fsdp {fsdp} × mesh.tensor {tensor} needs {wanted} devices, "
            f"there are {len(devices)}"
        )
    return Mesh(np.array(devices[:wanted]).reshape(data, fsdp, tensor), AXES)


def place_model(model: Decoder, mesh: Mesh) -> list[str]:
    """Move a model's arrays to their places, in place; an adapter is small and stays whole.

    Returns:
        A notice for every dimension that was left whole because an axis does not divide it.
    """
    notices: list[str] = []

    def place(path: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value")
        # Codes and scales of a kernel (``models.codes``) lie one level deeper.
        for part in ("qvalue", "scale"):
            name = name.replace(f".kernel.value.{part}", f".{part}")
        spec, notes = _spec(name, leaf.shape, mesh, model.config.head_dim)
        notices.extend(notes)
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    nnx.update(model, jax.tree_util.tree_map_with_path(place, nnx.state(model)))
    return notices


def _spec(
    name: str, shape: tuple[int, ...], mesh: Mesh, head_dim: int
) -> tuple[PartitionSpec, list[str]]:
    """Choose the mesh axis of each dimension of one array."""
    layout = LAYOUT.get(".".join(name.split(".")[-2:]), (None,) * len(shape))
    axes: list[str | None] = []
    notices = []
    for size, axis in zip(shape, layout, strict=True):
        # Attention is split between heads, never within one.
        heads = axis == "tensor" and ".attention." in name and size >= head_dim
        parts, what = (size // head_dim, f"{size // head_dim} heads") if heads else (size, size)
        if axis is not None and parts % mesh.shape[axis]:
            notices.append(
                f"{name}: {what} cannot be shared by mesh.{axis} {mesh.shape[axis]}; left whole"
            )
            axis = None
        axes.append(axis)
    return PartitionSpec(*axes), notices


def place_batch(tree: Any, mesh: Mesh) -> Any:
    """Put host arrays [g, b, …] onto the mesh, rows split over ``data`` and ``fsdp``."""
    sharding = NamedSharding(mesh, PartitionSpec(None, ("data", "fsdp")))
    return jax.tree.map(lambda leaf: jax.device_put(leaf, sharding), tree)


def place_heads(values_btnh: Any, mesh: Mesh, kv_heads: int) -> Any:
    """Put [b, t, heads, h] where a layer computes them: rows split, heads over ``tensor``."""
    heads = "tensor" if kv_heads % mesh.shape["tensor"] == 0 else None
    spec = PartitionSpec(("data", "fsdp"), None, heads)
    return jax.device_put(values_btnh, NamedSharding(mesh, spec))


def commit(tree: Any, mesh: Mesh) -> Any:
    """Put arrays that lie on no mesh yet whole onto every device of the mesh."""
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(
        lambda leaf: (
            leaf if isinstance(leaf.sharding, NamedSharding) else jax.device_put(leaf, whole)
        ),
        tree,
    )
