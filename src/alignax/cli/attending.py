# SPDX-License-Identifier: Apache-2.0
"""Setting ``model.attention`` + this machine → network with the way of attending that it uses."""

import dataclasses

import jax

from alignax.cli import terminal
from alignax.cli.loading import Policy
from alignax.models.attention.check import Use, settle_attention
from alignax.models.sharding import place_heads
from alignax.recipe import ModelSection
from alignax.shapes import TILE
from alignax.train.forward import Network


def platform() -> str:
    """Name what this process computes on: cpu, gpu or tpu."""
    return jax.default_backend()


def with_attention(
    network: Network, policy: Policy, section: ModelSection, tokens: int
) -> tuple[Network, str | None]:
    """Choose the way of attending for rows of up to ``tokens`` tokens, and check it.

    Returns:
        The network that uses it, and a notice if it is not the way that was chosen.

    Raises:
        UsageError: The asked-for way cannot run here.
    """
    config, mesh = policy.loaded.config, policy.mesh
    use = Use(
        config,
        section.dtype,
        tokens=-(-tokens // TILE) * TILE,
        rows=mesh.shape["data"] * mesh.shape["fsdp"],
        place=lambda values_btnh: place_heads(values_btnh, mesh, config.kv_head_count),
    )
    name, notice = settle_attention(section.attention, platform(), use)
    if notice is not None:
        terminal.warn(notice)
    elif name == "pallas":
        terminal.say("attention: pallas kernels, equal to dense attention on this machine")
    return dataclasses.replace(network, attention=name), notice
