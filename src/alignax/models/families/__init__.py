# SPDX-License-Identifier: Apache-2.0
"""The registry of model families; a new family is a module with one ``Family`` and a line here."""

from alignax.models.families.family import Family, TensorName
from alignax.models.families.llama import LLAMA
from alignax.models.families.mistral import MISTRAL
from alignax.models.families.qwen2 import QWEN2
from alignax.models.families.qwen3 import QWEN3

__all__ = ["FAMILIES", "Family", "TensorName"]

FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
}
