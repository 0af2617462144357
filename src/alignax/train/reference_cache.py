# SPDX-License-Identifier: Apache-2.0
"""Row id → the reference's log-probs, in memory and in one file that runs share.

The file is replaced as a whole, under a lock and with what others wrote since: whoever is killed
or writes at the same time loses nothing that was saved. It begins with the SHA-256 of what
follows, an ``.npz`` archive; a file of which that is not true is damaged, and set aside.
"""

import hashlib
import io
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from filelock import FileLock
from jaxtyping import Float

from alignax.errors import RunError

CHECKSUM_BYTES = 32


class Damaged(Exception):
    """The file is not what was once written."""


class ReferenceCache:
    """Summed log-probs of the answers of rows, by row id."""

    def __init__(self, file: Path, notify: Callable[[str], None] = lambda _: None):
        """Read the file if it exists.

        Args:
            file: Where the values are kept.
            notify: Told of a damaged file and of one that cannot be written.
        """
        self.file = file
        self._notify = notify
        self._usable = True
        self._values: dict[str, np.ndarray] = {}
        try:
            self._values = self._read()
        except Damaged:
            with self._locked():
                self._values = self._read_or_set_aside()
        except OSError as error:
            self._refused(error)

    def __len__(self) -> int:
        """Number of rows with values."""
        return len(self._values)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self.file.stat().st_size if self.file.exists() else 0

    def missing(self, row_ids: Sequence[str]) -> list[int]:
        """Positions of the rows whose values are not known yet (each row id once)."""
        seen = set(self._values)
        absent = []
        for index, row_id in enumerate(row_ids):
            if row_id not in seen:
                seen.add(row_id)
                absent.append(index)
        return absent

    def add(self, row_ids: Iterable[str], logps_ns: Float[np.ndarray, "n s"]) -> None:
        """Keep values and save them; where the disk refuses, they are kept in memory only.

        Raises:
            RunError: A value is not a finite number.
        """
        added = dict(zip(row_ids, logps_ns, strict=True))
        wrong = [row_id for row_id, value in added.items() if not np.isfinite(value).all()]
        if wrong:
            raise RunError(
                f"the reference's log-probs of {len(wrong)} rows are not finite, first {wrong[:3]}",
                hint="look at these rows with `alignax data show`, and check the model's weights",
            )
        self._values |= added
        if not self._usable:
            return
        try:
            self._merge()
        except OSError as error:
            self._refused(error)

    def table(self, row_ids: Sequence[str]) -> Float[np.ndarray, "n s"]:
        """Look up every row.

        Raises:
            RunError: Some rows have no value.
        """
        absent = [row_ids[index] for index in self.missing(row_ids)]
        if absent:
            raise RunError(
                f"the reference has no log-probs for {len(absent)} rows, first {absent[:3]}",
                hint=f"delete {self.file} to compute them anew",
            )
        return np.stack([self._values[row_id] for row_id in row_ids]).astype(np.float32)

    def _refused(self, error: OSError) -> None:
        """Go on without the disk."""
        self._usable = False
        self._notify(
            f"reference log-probs are not kept for other runs: {self.file}: "
            f"{error.strerror or error} ($ALIGNAX_CACHE places the cache)"
        )

    def _locked(self) -> FileLock:
        """Keep other writers out."""
        return FileLock(f"{self.file}.lock")

    def _merge(self) -> None:
        """Write the file anew with its present content and ours."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._values = self._read_or_set_aside() | self._values
            ids = np.array([row_id.encode() for row_id in self._values])
            logps = np.stack([*self._values.values()]).astype(np.float32)
            stream = io.BytesIO()
            np.savez(stream, row_ids=ids, logps=logps)
            content = stream.getvalue()
            partial = self.file.with_suffix(f".{os.getpid()}.tmp")
            try:
                partial.write_bytes(hashlib.sha256(content).digest() + content)
                partial.replace(self.file)
            finally:
                partial.unlink(missing_ok=True)

    def _read(self) -> dict[str, np.ndarray]:
        """Read the file; an absent one is empty."""
        try:
            stored = self.file.read_bytes()
        except FileNotFoundError:
            return {}
        checksum, content = stored[:CHECKSUM_BYTES], stored[CHECKSUM_BYTES:]
        # Nothing of a damaged file is parsed.
        if hashlib.sha256(content).digest() != checksum:
            raise Damaged("its checksum does not fit its content")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            ids, logps = arrays["row_ids"].tolist(), arrays["logps"]
        return dict(zip((row_id.decode() for row_id in ids), logps, strict=True))

    def _read_or_set_aside(self) -> dict[str, np.ndarray]:
        """Read the file; move a damaged one out of the way. The lock must be held."""
        try:
            return self._read()
        except Damaged as error:
            aside = self.file.with_suffix(f".damaged-{time.time_ns()}")
            self.file.replace(aside)
            self._notify(
                f"the reference cache {self.file} is damaged ({error}); it was moved to {aside} "
                "and is computed anew"
            )
            return {}
