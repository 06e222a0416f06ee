"""The keys of a suite as rows for people, read from its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from distbench.suite.json_schema import AXIS_TITLE

Schema = Mapping[str, Any]

_WORDS = {"string": "text", "boolean": "true or false", "null": "null", "object": "mapping"}
_UNLIMITED = 2**31 - 1
"""Upper bounds from here on are those of a 32-bit or 64-bit number, and no advice."""


def describe_keys(schema: Schema, inside: str = "") -> Iterator[dict[str, Any]]:
    """Yield each key of *schema*: its path, type and doc, whether it is required, and the default if any."""
    for name, node in schema["properties"].items():
        key = f"{inside}{name}"
        yield {
            "key": key,
            "type": _type(node),
            "required": name in schema.get("required", ()),
            **({"default": node["default"]} if "default" in node else {}),
            "doc": node.get("description", ""),
        }
        for form in node.get("anyOf", [node]):
            # a schema with a title, such as a plug-in with its options, is listed by its title alone
            if "properties" in form and "title" not in form:
                yield from describe_keys(form, f"{key}.")


def key_heading(row: Mapping[str, Any]) -> str:
    """Key, type and default of a *row* on one line."""
    default = f"; default: {_default_text(row['default'])}" if "default" in row else ""
    return f"{row['key']}: {row['type']}{'; required' if row['required'] else default}"


def _default_text(default: Any) -> str:
    # the doc explains the meaning of that
    return "none" if default is None else json.dumps(default)


def _type(node: Schema) -> str:
    forms = [form for form in node.get("anyOf", [node]) if form.get("title") != AXIS_TITLE]
    several = "; several" if len(forms) < len(node.get("anyOf", [node])) else ""
    is_null = "default" in node and node["default"] is None
    return (
        " or ".join(_schema_text(form) for form in forms if is_null or form.get("type") != "null") + several
    )


def _schema_text(form: Schema) -> str:
    if "title" in form:
        return str(form["title"])
    if "const" in form or "enum" in form:
        return ", ".join(json.dumps(word).strip('"') for word in form.get("enum", [form.get("const")]))
    kind = form.get("type", "")
    if kind in ("integer", "number"):
        return f"{'whole number' if kind == 'integer' else 'number'}{_range_text(form)}"
    if kind == "array":
        pair = form.get("prefixItems")
        return f"list of {len(pair)}: {_type(pair[0])}" if pair else f"list of {_type(form['items'])}"
    return str(_WORDS.get(kind, "any value"))


def _range_text(form: Schema) -> str:
    low, above = form.get("minimum"), form.get("exclusiveMinimum")
    high, below = form.get("maximum"), form.get("exclusiveMaximum")
    ends = []
    if low is not None:
        ends.append(f"from {low:g}")
    if above is not None:
        ends.append(f"above {above:g}")
    if high is not None and high < _UNLIMITED:
        ends.append(f"to {high:,.10g}")
    if below is not None and below < _UNLIMITED:
        ends.append(f"to below {below:g}")
    return f" {' '.join(ends)}" if ends else ""
