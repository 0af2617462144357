# SPDX-License-Identifier: Apache-2.0
"""A file of prompts → prompts with their tools: data files by column, other files by line."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from alignax.data.formats.turns import RowProblem, require_prompt, tools, turns, with_system
from alignax.data.readers import SUFFIXES, Broken, as_turns, parse_json, read_files
from alignax.errors import DataError

COLUMNS = ("messages", "prompt", "conversations", "question", "instruction")
"""Columns that may hold a prompt; the first that holds something counts."""


class Prompt(NamedTuple):
    """What is asked: text, or chat turns that end with a question.

    Attributes:
        said: Text or turns.
        tools: Tool definitions.
    """

    said: Any
    tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def turns(self) -> tuple[Mapping[str, Any], ...]:
        """The prompt as chat turns."""
        if isinstance(self.said, str):
            return ({"role": "user", "content": self.said},)
        return tuple(self.said)


def read_prompts(file: str) -> list[Prompt]:
    """Read a data file (JSON, JSON lines, CSV, Parquet), or a text file with a prompt a line.

    Lines of a text file that begin with a brace are rows, too.

    Raises:
        DataError: The file cannot be read, holds no prompt, or a row holds none.
    """
    path = Path(file)
    if path.name.lower().endswith(SUFFIXES):
        rows: Iterator[tuple[int, Any]] = ((line, row) for _, line, row in read_files([path]))
    else:
        rows = _text_lines(path)
    prompts = [_prompt(row, f"{file}:{line}") for line, row in rows]
    if not prompts:
        raise DataError(f"{file} holds no prompts")
    return prompts


def _text_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Read lines that are not empty; JSON objects are parsed."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read prompts {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"prompts {path} are not UTF-8: {error.reason}", hint="convert the file to UTF-8"
        ) from error
    for number, line in enumerate(text.split("\n"), 1):
        said = line.removesuffix("\r")
        if not said.strip():
            continue
        if not said.lstrip().startswith("{"):
            yield number, said
            continue
        try:
            yield number, parse_json(said)
        except ValueError as error:
            raise DataError(f"{path}:{number}: not JSON: {error}") from error


def _prompt(row: Any, place: str) -> Prompt:
    """Read one row.

    Raises:
        DataError: It holds no prompt.
    """
    if isinstance(row, Broken):
        raise DataError(f"{place}: {row.error}")
    if isinstance(row, str):
        return Prompt(row)
    if not isinstance(row, Mapping):
        raise DataError(f"{place}: a prompt is text or an object, got {type(row).__name__}")
    said = next((row[name] for name in COLUMNS if row.get(name)), None)
    if said is None:
        raise DataError(
            f"{place}: no prompt (columns: {', '.join(map(str, row)) or 'none'})",
            hint=f"name the column {' or '.join(COLUMNS[:2])}",
        )
    said = as_turns(said)
    try:
        if isinstance(said, str):
            plain = ({"role": "user", "content": said},)
            asked = with_system(plain, row)
            return Prompt(said if asked == plain else asked, tools(row))
        return Prompt(with_system(require_prompt(turns(said, "prompt")), row), tools(row))
    except RowProblem as problem:
        raise DataError(f"{place}: {problem.detail}") from problem
