# SPDX-License-Identifier: Apache-2.0
"""The registry of model families; a new family is a module with one ``Family`` and a line here."""

from alignax.models.families.family import Family, TensorName
from alignax.models.families.gemma import GEMMA
from alignax.models.families.gemma2 import GEMMA2
from alignax.models.families.gemma3 import GEMMA3
from alignax.models.families.granite import GRANITE
from alignax.models.families.llama import LLAMA
from alignax.models.families.mistral import MISTRAL
from alignax.models.families.mixtral import MIXTRAL
from alignax.models.families.olmo2 import OLMO2
from alignax.models.families.phi3 import PHI3
from alignax.models.families.qwen2 import QWEN2
from alignax.models.families.qwen3 import QWEN3
from alignax.models.families.qwen3_moe import QWEN3_MOE
from alignax.models.families.smollm3 import SMOLLM3

__all__ = ["FAMILIES", "Family", "TensorName"]

FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "smollm3": SMOLLM3,
    "mistral": MISTRAL,
    "mixtral": MIXTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "olmo2": OLMO2,
    "phi3": PHI3,
    "granite": GRANITE,
}
