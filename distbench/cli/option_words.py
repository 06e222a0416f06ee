"""Describe types and defaults of plug-in options in YAML terms."""

from __future__ import annotations

import ast
import json
import re

_WORDS = {
    "Any": "any value",
    "None": "null",
    "bool": "true or false",
    "dict": "mapping",
    "float": "number",
    "int": "whole number",
    "str": "text",
}
_LISTS = {"list", "tuple"}
REQUIRED = "required"
"""Shown in place of a default where there is none."""


def type_and_default(kind: str, default: str) -> str:
    """Return the type *kind* and the *default*, both in Python notation, in YAML terms."""
    told = _type_text(ast.parse(re.sub(r"\bOptional\[(.*)\]", r"\1 | None", kind), mode="eval").body)
    return f"{told}; {REQUIRED}" if default == REQUIRED else f"{told}; default: {_default_text(default)}"


def _type_text(node: ast.expr) -> str:
    match node:
        case ast.BinOp(left, ast.BitOr(), right):
            return f"{_type_text(left)} or {_type_text(right)}"
        case ast.Subscript(ast.Name("Union"), ast.Tuple(either)):
            return " or ".join(map(_type_text, either))
        case ast.Subscript(ast.Name("Literal"), chosen):
            values = ast.literal_eval(chosen)
            return ", ".join(map(str, values if isinstance(values, tuple) else (values,)))
        case ast.Subscript(ast.Name(name), inside) if name in _LISTS:
            return f"list of {_type_text(inside.elts[0] if isinstance(inside, ast.Tuple) else inside)}"
        case ast.Subscript(ast.Name(name)):
            return _WORDS.get(name, name)
        case _:
            return _WORDS.get(ast.unparse(node), ast.unparse(node))


def _default_text(default: str) -> str:
    try:
        return json.dumps(ast.literal_eval(default))
    except (SyntaxError, ValueError):
        # a plug-in may have a default that only Python can write
        return default
