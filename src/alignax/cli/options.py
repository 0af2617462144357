# SPDX-License-Identifier: Apache-2.0
"""Command-line words → settings: flags are made from the recipe's schema, one for each key."""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

from pydantic.fields import FieldInfo

from alignax.errors import UsageError
from alignax.recipe import ALIASES, MAPPINGS, Recipe, known_keys, load_recipe, parse_value

SHORT = {key: short for short, key in ALIASES.items()}


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are ours, with a suggestion for an unknown flag."""

    def __init__(self, *args: Any, **kwargs: Any):
        """Turn abbreviations off: a flag means one thing only."""
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting, so that all errors look alike."""
        raise UsageError(message, hint=f"`{self.prog} --help` lists all options")

    def flags(self) -> list[str]:
        """Every long flag that this parser knows."""
        return [flag for action in self._actions for flag in action.option_strings]


def _section(dotted: str) -> Any:
    """Find the class of a section, which may lie in another one."""
    found: Any = Recipe
    for name in dotted.split("."):
        found = found.model_fields[name].annotation
    return found


def add_settings(parser: Parser, *prefixes: str) -> None:
    """Add a flag for every recipe key below the given prefixes (``"data."``, ``"loss.beta"``).

    A verb asks for the settings that have an effect on it; all others are unknown to it.
    """
    groups: dict[str, Any] = {}
    for key, info in known_keys().items():
        if not key.startswith(prefixes) or key == "method":
            continue
        section = key.rpartition(".")[0]
        if section not in groups:
            title = f"{section} settings" if section else "settings"
            about = _section(section).__doc__ if section else None
            groups[section] = parser.add_argument_group(title, about)
        names = [f"--{key}"]
        if key in SHORT:
            names.insert(0, f"--{SHORT[key]}")
        extra: dict[str, Any] = {}
        if _is_bool(info):
            extra = {"nargs": "?", "const": "true"}
        groups[section].add_argument(
            *names, dest=f"recipe:{key}", metavar=_metavar(info), help=_help(info), **extra
        )


def _is_bool(info: FieldInfo) -> bool:
    """Tell whether a setting may be given as a bare flag."""
    return info.annotation is bool or bool in get_args(info.annotation)


def _metavar(info: FieldInfo) -> str:
    """Name a setting's value in the help: its choices, or its type."""
    kind = info.annotation
    if get_origin(kind) is not None and all(isinstance(a, str) for a in get_args(kind)):
        return "|".join(get_args(kind))
    if get_origin(kind) is dict:
        return "NAME=VALUE,…"
    kinds = [getattr(a, "__name__", "") for a in (get_args(kind) or (kind,))]
    for name, shown in (("bool", "true|false"), ("int", "N"), ("float", "X")):
        if name in kinds:
            return shown
    return "TEXT"


def _help(info: FieldInfo) -> str:
    """Describe a setting with its default."""
    default = info.default
    shown = "" if default in (None, "", {}) else f" (default: {default})"
    return f"{info.description}{shown}".replace("%", "%%")


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Collect the settings that were given as flags."""
    return {
        key: value_of(key, text)
        for name, text in vars(arguments).items()
        if (key := name.removeprefix("recipe:")) != name and text is not None
    }


def settings_of(arguments: argparse.Namespace, *, method: str) -> Recipe:
    """Build the recipe from ``--recipe`` and the flags."""
    overrides = given_settings(arguments)
    return load_recipe(getattr(arguments, "recipe", None), {**overrides, "method": method})


def value_of(key: str, text: str) -> Any:
    """Parse a flag's text; text settings stay text, comma lists become lists."""
    if key in MAPPINGS:
        return _mapping(key, text)
    kind = known_keys()[key].annotation
    kinds = get_args(kind) or (kind,)
    takes_list = any(get_origin(k) is list for k in (kind, *kinds))
    if takes_list and "," in text and "[" not in text and not Path(text).exists():
        return [part.strip() for part in text.split(",") if part.strip()]
    value = parse_value(text)
    if isinstance(value, str) and value and key == "lora.targets" and value != "all-linear":
        return [value]
    wants_text = str in kinds and float not in kinds
    return text if wants_text and not isinstance(value, list | type(None)) else value


def _mapping(key: str, text: str) -> dict[str, Any]:
    """Read ``NAME=VALUE,NAME=VALUE``."""
    given: dict[str, Any] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not name or not equals or not value:
            raise UsageError(f"--{key} takes NAME=VALUE,NAME=VALUE, got {part!r}")
        given[name] = value
    return given


def require(recipe: Recipe, *keys: str) -> None:
    """Refuse a run without the settings that it cannot do without; all are named at once."""
    flat = {"model.path": recipe.model.path, "data.path": recipe.data.path, "output": recipe.output}
    absent = [f"--{SHORT.get(key, key)}" for key in keys if not flat[key]]
    if absent:
        raise UsageError(f"missing: {', '.join(absent)}", hint="give it as a flag or in the recipe")


def reject_unknown(parser: Parser, words: Sequence[str]) -> None:
    """Raise for words that no flag took, naming the nearest flag of this verb."""
    if not words:
        return
    problems = []
    for word in words:
        if not word.startswith("--"):
            continue
        name = word.split("=")[0]
        near = difflib.get_close_matches(name, parser.flags(), 1, 0.6)
        leaf = {flag.rsplit(".", 1)[-1]: flag for flag in parser.flags()}
        near = near or [leaf[m] for m in difflib.get_close_matches(name[2:], leaf, 1, 0.7)]
        if near:
            problems.append(f"{name}: did you mean {near[0]}?")
        elif name[2:] in known_keys():
            problems.append(f"{name}: has no effect on `{parser.prog}`")
        else:
            problems.append(f"{name}: unknown")
    raise UsageError(
        f"unknown or ineffective options: {' '.join(words)}",
        problems=problems,
        hint=f"`{parser.prog} --help` lists all options",
    )


def warn_terminal(message: str) -> None:
    """Write one line of talk to stderr."""
    sys.stderr.write(f"{message}\n")
