# SPDX-License-Identifier: Apache-2.0
"""The registry of model families; a new family is a module with one ``Family`` and a line here."""

from alignax.models.families.family import Family, TensorName
from alignax.models.families.llama import LLAMA

__all__ = ["FAMILIES", "Family", "TensorName"]

FAMILIES: dict[str, Family] = {"llama": LLAMA}
