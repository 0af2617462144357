# SPDX-License-Identifier: Apache-2.0
"""References to images in rows: kept as what they are, never opened."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

IMAGE_PARTS = ("image", "image_url", "input_image")
"""Types of the content parts that are images."""

IMAGE_MARK = "<image>"
"""What stands in a text where an image belongs."""

COLUMNS = ("image", "images")
ELSEWHERE = ("http://", "https://", "data:", "s3://", "gs://", "embedded:", "hf://")
"""References that name no file on this machine."""


def references(row: Mapping[str, Any]) -> tuple[str, ...]:
    """List the images of a row: its image columns, then the image parts of its turns."""
    found = [ref for name in COLUMNS for ref in _column(row.get(name))]
    return (*found, *(ref for name, value in row.items() if name not in COLUMNS
                      for ref in _parts(value)))  # fmt: skip


def _column(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.strip():
        yield value
    elif isinstance(value, Mapping):
        yield _one(value)
    elif isinstance(value, list):
        for item in value:
            yield from _column(item)


def _parts(value: Any) -> Iterator[str]:
    """Find image parts in turns."""
    for turn in value if isinstance(value, list) else ():
        content = turn.get("content") if isinstance(turn, Mapping) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping) and part.get("type") in IMAGE_PARTS:
                yield _one(part)


def _one(value: Mapping[str, Any]) -> str:
    """Name one image: its path or address, or the hash of its bytes."""
    for key in ("path", "url", "image", "image_url", "file_name"):
        inner = value.get(key)
        if isinstance(inner, Mapping):
            return _one(inner)
        if isinstance(inner, str) and inner:
            return inner
    held = value.get("bytes")
    return f"embedded:{hashlib.sha256(str(held).encode()).hexdigest()[:16]}" if held else ""


def missing(images: tuple[str, ...], texts: str, folder: Path | None) -> bool:
    """Tell whether a row refers to an image that is not there.

    Args:
        images: Its references.
        texts: What it says; image marks beyond the references have no image.
        folder: Where relative paths begin; None: paths are not looked up.
    """
    if texts.count(IMAGE_MARK) > len(images):
        return True
    return any(not ref or (folder is not None and not _exists(ref, folder)) for ref in images)


def _exists(reference: str, folder: Path) -> bool:
    if reference.startswith(ELSEWHERE):
        return True
    try:
        return (folder / reference).is_file()
    except OSError:
        return False
