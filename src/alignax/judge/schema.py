# SPDX-License-Identifier: Apache-2.0
"""A value and a JSON schema → what does not fit, for the keywords that answers are checked with.

A subset of JSON Schema 2020-12; a keyword outside of it is refused, never skipped.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "integer": lambda v: (
        not isinstance(v, bool) and isinstance(v, int | float) and float(v).is_integer()
    ),
}

KNOWN = (
    "type", "enum", "const", "required", "properties", "additionalProperties", "items",
    "minItems", "maxItems", "minLength", "maxLength", "pattern", "minimum", "maximum", "anyOf",
    "title", "description", "$schema",
)  # fmt: skip


def schema_problems(schema: Any, place: str = "schema") -> list[str]:
    """Say what this reader does not understand of a schema."""
    if isinstance(schema, bool):
        return []
    if not isinstance(schema, Mapping):
        return [f"{place} is {schema!r}, not an object"]
    found = [f"{place}: {key!r} is not supported" for key in schema if key not in KNOWN]
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    found += [f"{place}: type {kind!r} is unknown" for kind in kinds if kind not in TYPES]
    if "pattern" in schema:
        try:
            re.compile(schema["pattern"])
        except (re.error, TypeError) as error:
            found.append(f"{place}: pattern {schema['pattern']!r}: {error}")
    for name, inner in _inner(schema):
        found += schema_problems(inner, f"{place}.{name}")
    return found


def _inner(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every schema within a schema."""
    for name, inner in schema.get("properties", {}).items():
        yield f"properties.{name}", inner
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield name, schema[name]
    for number, inner in enumerate(schema.get("anyOf", [])):
        yield f"anyOf.{number}", inner


def violations(value: Any, schema: Any, place: str = "$") -> list[str]:
    """List what of a value does not fit; empty if all does."""
    if isinstance(schema, bool):
        return [] if schema else [f"{place}: nothing is allowed"]
    found = []
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if kinds and not any(TYPES[kind](value) for kind in kinds):
        return [f"{place}: not {' or '.join(kinds)}"]
    if "enum" in schema and not any(_same(value, option) for option in schema["enum"]):
        found.append(f"{place}: not one of {schema['enum']}")
    if "const" in schema and not _same(value, schema["const"]):
        found.append(f"{place}: not {schema['const']!r}")
    options = schema.get("anyOf")
    if options and all(violations(value, option, place) for option in options):
        found.append(f"{place}: fits none of anyOf")
    found += _bounds(value, schema, place)
    if isinstance(value, dict):
        found += _object(value, schema, place)
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            found += violations(item, schema["items"], f"{place}[{number}]")
    return found


def _same(one: Any, other: Any) -> bool:
    """Compare as JSON does: true is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _bounds(value: Any, schema: Mapping[str, Any], place: str) -> list[str]:
    """Check sizes, ranges and patterns."""
    size: dict[str, Any] = {}
    if isinstance(value, list):
        size = {"minItems": len(value), "maxItems": len(value)}
    elif isinstance(value, str):
        size = {"minLength": len(value), "maxLength": len(value)}
    elif TYPES["number"](value):
        size = {"minimum": value, "maximum": value}
    found = []
    for key, measured in size.items():
        limit = schema.get(key, measured)
        if measured < limit if key.startswith("min") else measured > limit:
            found.append(f"{place}: {measured} breaks {key} {limit}")
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        found.append(f"{place}: does not match {schema['pattern']!r}")
    return found


def _object(value: Mapping[str, Any], schema: Mapping[str, Any], place: str) -> list[str]:
    """Check the keys of an object."""
    found = [f"{place}: no {key!r}" for key in schema.get("required", []) if key not in value]
    known = schema.get("properties", {})
    for key, item in value.items():
        inner = known.get(key, schema.get("additionalProperties", True))
        found += violations(item, inner, f"{place}.{key}")
    return found
