# SPDX-License-Identifier: Apache-2.0
"""Align open-weight language models with human preferences, in JAX."""

__version__ = "0.1.0"

__all__ = ["__version__"]
