# SPDX-License-Identifier: Apache-2.0
"""Devices and model shapes that `alignax plan` knows by name, as data.

Memory and dense bfloat16 rates are those of the vendors' data sheets (NVIDIA without sparsity, SXM
where there is a choice; Google for one chip). v4 and v5p slices are named by their cores, two a
chip; v5e and v6e slices by their chips.
"""

from dataclasses import dataclass
from typing import Literal

from alignax.models.config import DecoderConfig

GIB = 2**30


@dataclass(frozen=True)
class Device:
    """One device of a kind.

    Attributes:
        name: As the command line takes it.
        kind: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
        memory: Bytes of memory.
        flops: bfloat16 matrix-multiply FLOPs a second; on a CPU the measured float32 rate.
        count: Devices of the named slice; 1 for a single device.
    """

    name: str
    kind: Literal["cpu", "gpu", "tpu"]
    memory: int
    flops: float
    count: int = 1


USABLE = {"cpu": 0.8, "gpu": 0.75, "tpu": 0.9}
"""Share of a device's memory that a run may fill. JAX takes three quarters of a GPU by default; a
CPU's memory has other users."""

RUNTIME = {"cpu": int(0.375 * GIB), "gpu": int(0.5 * GIB), "tpu": int(0.25 * GIB)}
"""Bytes that compiler, compiled programs and libraries take besides a run's arrays; on a CPU what
a tiny model's step was measured to take."""

FLOAT32_RATE = {"cpu": 1.0, "gpu": 0.5, "tpu": 1.0}
"""Rate of float32 products against ``Device.flops``: GPUs multiply them as TF32, TPUs round the
operands to bfloat16."""


def _gpu(name: str, gigabytes: int, tflops: float) -> Device:
    """A GPU; vendors count memory in units of 2³⁰ bytes."""
    return Device(name, "gpu", gigabytes * GIB, tflops * 1e12)


def _tpu(generation: str, named: int, gibibytes: int, tflops: float) -> Device:
    """A TPU slice."""
    chips = named // 2 if generation in ("v4", "v5p") else named
    return Device(f"{generation}-{named}", "tpu", gibibytes * GIB, tflops * 1e12, chips)


DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        _gpu("l4", 24, 121),
        _gpu("rtx4090", 24, 165),
        _gpu("a100-40gb", 40, 312),
        _gpu("l40s", 48, 362),
        _gpu("a100", 80, 312),
        _gpu("h100", 80, 989),
        _gpu("h200", 141, 989),
        _gpu("b200", 180, 2250),
        *(_tpu("v4", n, 32, 275) for n in (8, 16, 32, 64)),
        *(_tpu("v5e", n, 16, 197) for n in (1, 4, 8, 16, 32, 64)),
        *(_tpu("v5p", n, 95, 459) for n in (8, 16, 32, 64)),
        *(_tpu("v6e", n, 32, 918) for n in (1, 4, 8, 16, 32, 64)),
    )
}


def _llama(
    vocab: int, width: int, mlp: int, layers: int, heads: int, keys: int, head: int, *, tied: bool
) -> DecoderConfig:
    """A shape of the Llama family."""
    return DecoderConfig("llama", vocab, width, mlp, layers, heads, keys, head, tie_embeddings=tied)


SHAPES: dict[str, DecoderConfig] = {
    "smollm2-135m": _llama(49_152, 576, 1536, 30, 9, 3, 64, tied=True),
    "smollm2-360m": _llama(49_152, 960, 2560, 32, 15, 5, 64, tied=True),
    "smollm2-1.7b": _llama(49_152, 2048, 8192, 24, 32, 32, 64, tied=True),
    "llama-3.2-1b": _llama(128_256, 2048, 8192, 16, 32, 8, 64, tied=True),
    "llama-3.2-3b": _llama(128_256, 3072, 8192, 28, 24, 8, 128, tied=True),
    "llama-3.1-8b": _llama(128_256, 4096, 14_336, 32, 32, 8, 128, tied=False),
    "llama-3.1-70b": _llama(128_256, 8192, 28_672, 80, 64, 8, 128, tied=False),
}
"""Name → shape, so that a plan needs no files."""
