# SPDX-License-Identifier: Apache-2.0
"""Rows of a file → rows that formats read: columns renamed, ranked answers made into pairs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from alignax.data.formats import ranked
from alignax.errors import UsageError

RESHAPE_VERSION = "1"
"""Raised whenever the rows that some row becomes change."""


@dataclass(frozen=True)
class Shape:
    """How rows are reshaped when they are read.

    Attributes:
        columns: Our column → the file's, with dots into nested objects.
        pairing: Which pairs are made of several answers: best-worst, adjacent or all.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    pairing: str = "best-worst"

    @property
    def name(self) -> str:
        """Name everything that decides the rows; empty for the usual."""
        return repr((RESHAPE_VERSION, sorted(self.columns.items()), self.pairing))

    def apply(self, records: Iterator[tuple[int, int, Any]]) -> Iterator[tuple[int, int, Any]]:
        """Reshape (file, line, row) records.

        Raises:
            UsageError: A column that is to be renamed is in no row.
        """
        found = dict.fromkeys(self.columns, False)
        seen: set[str] = set()
        for file, line, row in records:
            if self.columns and isinstance(row, Mapping):
                seen.update(map(str, row))
                row = self._renamed(row, found)
            for made in ranked.pairs(row, self.pairing):
                yield file, line, made
        absent = [theirs for ours, theirs in self.columns.items() if not found[ours]]
        if absent and seen:
            raise UsageError(
                f"data.columns names {', '.join(absent)}, which no row has",
                hint=f"the rows have: {', '.join(sorted(seen))}",
            )

    def _renamed(self, row: Mapping[str, Any], found: dict[str, bool]) -> dict[str, Any]:
        """Give mapped columns our names; all others stay, unless one of ours takes their place."""
        taken = {theirs.partition(".")[0] for theirs in self.columns.values()}
        result = {k: v for k, v in row.items() if k not in taken and k not in self.columns}
        for ours, theirs in self.columns.items():
            there, value = _reach(row, theirs)
            found[ours] |= there
            if there:
                result[ours] = value
        return result


def _reach(row: Any, path: str) -> tuple[bool, Any]:
    """Follow a dotted path; a column whose very name has dots comes first."""
    if isinstance(row, Mapping) and path in row:
        return True, row[path]
    head, _, rest = path.partition(".")
    if isinstance(row, list) and head.lstrip("-").isdigit():
        index = int(head)
        inner = row[index] if -len(row) <= index < len(row) else None
        return (False, None) if inner is None else (_reach(inner, rest) if rest else (True, inner))
    if rest and isinstance(row, Mapping) and head in row:
        return _reach(row[head], rest)
    return False, None
