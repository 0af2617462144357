# SPDX-License-Identifier: Apache-2.0
"""Files → a folder that is whole or absent, and that replaces nothing but an earlier self.

Everything is written to a hidden folder beside the target, flushed to the disk, and renamed. The
manifest ``alignax.json`` names the run that wrote it, so that a later export of the same run may
take its place; any other folder is left alone.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from alignax.errors import RunError
from alignax.files import read_json, write_json

MANIFEST = "alignax.json"
SPARE_BYTES = 32 * 2**20
"""Room for tokenizer, card and configuration beside the weights."""


@contextlib.contextmanager
def new_folder(target: Path, *, run: str, weight_bytes: int) -> Iterator[Path]:
    """Give a folder to write to; it becomes ``target`` when the block ends without an error.

    Args:
        target: Final place.
        run: Identity of the run; an earlier export with the same identity is replaced.
        weight_bytes: What the weights will take.

    Raises:
        RunError: The target holds something else, the disk is full, or a write failed. Whatever
            was there before is still there.
    """
    require_replaceable(target, run)
    partial = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        require_space(target.parent, weight_bytes + SPARE_BYTES)
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir()
        yield partial
        _flush(partial)
        _swap(partial, target)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RunError(
            f"cannot write the export {target}: {reason}; nothing was changed"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def require_replaceable(target: Path, run: str) -> None:
    """Refuse a target that is in use by anything but an earlier export of the same run.

    Raises:
        RunError: The target is a file or a foreign folder.
    """
    if not target.exists():
        return
    if not target.is_dir():
        raise RunError(f"cannot export to {target}: it is a file; nothing was written")
    names = sorted(path.name for path in target.iterdir())
    if not names:
        return
    if MANIFEST not in names:
        raise RunError(
            f"cannot export to {target}: it holds {', '.join(names[:3])} and was not written by "
            "alignax; nothing was written",
            hint="move it away, or export to another folder",
        )
    other = read_manifest(target).get("run")
    if other != run:
        raise RunError(
            f"cannot export to {target}: it is an export of run {other}, this is run {run}; "
            "nothing was written",
            hint="move it away, or export to another folder",
        )


def require_space(folder: Path, needed: int) -> None:
    """Refuse to begin what the disk cannot hold.

    Raises:
        RunError: Too little free space.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise RunError(
            f"not enough disk space in {folder}: the export needs {in_megabytes(needed)}, "
            f"{in_megabytes(free)} are free; nothing was written",
            hint="free some space, or name an --output on another disk",
        )


def in_megabytes(count: int) -> str:
    """Write a number of bytes for people."""
    return f"{count / 1e6:,.0f} MB"


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest, with size and SHA-256 of every other file of the folder."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": file_hash(path)}
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST
    }
    write_json(folder / MANIFEST, {**content, "files": files})


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of an export; empty when there is none.

    Raises:
        RunError: It is damaged.
    """
    file = folder / MANIFEST
    return read_json(file) if file.exists() else {}


def damaged_files(folder: Path) -> list[str]:
    """Compare the files of an export with its manifest."""
    problems = []
    for name, stored in read_manifest(folder).get("files", {}).items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif path.stat().st_size != stored["bytes"] or file_hash(path) != stored["sha256"]:
            problems.append(f"{name} is not what was written ({path.stat().st_size} bytes)")
    return problems


def amend_manifest(folder: Path, **entries: Any) -> None:
    """Add entries to the manifest of a finished export."""
    write_json(folder / MANIFEST, read_manifest(folder) | entries)


def set_aside(target: Path) -> Path:
    """Rename an export that failed its checks, so that nothing picks it up by mistake."""
    failed = target.with_name(f"{target.name}.failed")
    if failed.exists():
        shutil.rmtree(failed)
    return target.rename(failed)


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(folder: Path) -> None:
    """Make the disk keep every file of a folder, and their names."""
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _swap(partial: Path, target: Path) -> None:
    """Put the new folder in the place of the old one, which comes back if that fails."""
    if not target.exists():
        partial.rename(target)
        return
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    target.rename(old)
    try:
        partial.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)
