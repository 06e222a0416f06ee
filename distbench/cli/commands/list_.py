"""``distbench list``: the plug-ins with their options and columns, and the keys of a suite."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Annotated, Any

from distbench.cli.options import JsonOption, argument, check_exclusive, flag
from distbench.cli.output import print_json, print_text, wrap_to_terminal
from distbench.core.errors import UsageError, did_you_mean

_SUITE = "suite"
_TYPE_WORDS = {
    "Any": "any value",
    "None": "null",
    "bool": "true or false",
    "dict": "mapping",
    "float": "number",
    "int": "whole number",
    "str": "text",
}
_LIST_TYPES = {"list", "tuple"}
_REQUIRED = "required"
"""Shown in place of a default where there is none."""


def list_(
    kind: Annotated[str, argument("[KIND]", "strategies, workloads, data, metrics, ..., or suite.")] = "",
    name: Annotated[str, argument("[NAME]", "Plug-in to describe; strategies with their cards.")] = "",
    as_json: JsonOption = False,
    as_schema: Annotated[
        bool, flag("--json-schema", text="suite: print its JSON Schema, for editors.")
    ] = False,
) -> int:
    """List plug-ins with their options, or the keys of a suite."""
    from distbench.core import registry

    check_exclusive("list", **{"json": as_json, "json-schema": as_schema})
    if as_schema and kind != _SUITE:
        raise UsageError("list --json-schema: only a suite has one: distbench list suite --json-schema")
    _check(kind, name)
    if kind == _SUITE:
        return _list_suite(as_json=as_json, as_schema=as_schema)
    kinds = [kind] if kind else list(registry.PLUGIN_KINDS)
    asked = {kind: [name] if name else _names(kind) for kind in kinds}
    has_cards = as_json or bool(name)
    plugins = {
        kind: [_describe_plugin(kind, each, has_cards=has_cards) for each in names]
        for kind, names in asked.items()
    }
    if as_json:
        print_json(plugins)
        return 0
    for title, described in plugins.items():
        print_text(title)
        for plugin in described:
            _print(plugin)
            for card in plugin.get("cards", ()):
                _print_card(card)
        print_text()
    return 0


def _check(kind: str, name: str) -> None:
    """Check that *kind* exists, and a plug-in *name* of it; either may be empty."""
    from distbench.core import registry

    if name and not kind:
        raise UsageError(f"list: missing KIND before {name!r}; kinds: {', '.join(registry.PLUGIN_KINDS)}")
    if name and kind == _SUITE:
        raise UsageError(f"list suite: takes no name, not {name!r}; distbench list suite lists all keys")
    if kind and kind not in (*registry.PLUGIN_KINDS, _SUITE):
        raise UsageError(f"list {kind!r}: unknown; {did_you_mean(kind, (*registry.PLUGIN_KINDS, _SUITE))}")
    if name and name not in _names(kind):
        raise UsageError(f"list {kind} {name!r}: unknown; {did_you_mean(name, _names(kind))}")


def _names(kind: str) -> list[str]:
    """Names of the plug-ins of *kind*, and of the views that kinds of job have."""
    from distbench.core import registry

    of_jobs = registry.submodule_summaries("jobs", "view") if kind == "views" else ()
    return sorted({*registry.plugin_names(kind), *of_jobs})


def _list_suite(*, as_json: bool, as_schema: bool) -> int:
    # checking types imports pydantic, which no other list needs
    from distbench.cli.suite_keys import describe_keys, key_heading
    from distbench.suite.json_schema import json_schema

    schema = json_schema()
    rows = list(describe_keys(schema))
    if as_json or as_schema:
        print_json(schema if as_schema else rows)
        return 0
    for row in rows:
        print_text(wrap_to_terminal(key_heading(row), 0, 4))
        if row["doc"]:
            print_text(wrap_to_terminal(row["doc"], 4))
    print_text()
    print_text("several: each value of a list makes a case")
    print_text("{name: {option: value}}: distbench list KIND shows the options")
    return 0


def _describe_plugin(kind: str, name: str, *, has_cards: bool) -> dict[str, Any]:
    from distbench.core import registry

    try:
        if not registry.has_options(kind):
            of_jobs = registry.submodule_summaries("jobs", "view")
            return {
                "name": name,
                "summary": of_jobs.get(name) or registry.file_summary(kind, name),
                "options": [],
            }
        plugin = registry.load_plugin(kind, name)
        described: dict[str, Any] = {
            "name": name,
            "summary": registry.summary(plugin),
            "options": [
                dataclasses.asdict(option)
                for option in registry.option_infos(getattr(plugin, "section", plugin))
            ],
        }
    except (UsageError, TypeError, SyntaxError) as error:
        # one broken file must not hide the others
        return {"name": name, "problem": str(error)}
    if kind == "strategies" and has_cards:
        described["cards"] = [_card_json(variant) for variant in plugin.variants() if variant.card]
    if hasattr(plugin, "columns"):
        described["columns"] = [dataclasses.asdict(column) for column in plugin.columns]
    return described


def _card_json(strategy: Any) -> dict[str, Any]:
    claims = [dataclasses.asdict(claim) for claim in strategy.card.claims]
    return {"strategy": strategy.label, "claims": claims}


def _print_card(card: dict[str, Any]) -> None:
    print_text(wrap_to_terminal(card["strategy"], 2))
    for claim in card["claims"]:
        source = f" [{claim['source']}]" if claim["source"] else ""
        print_text(wrap_to_terminal(f"{claim['aspect']}: {claim['text']}{source}", 6, 4))


def _print(plugin: dict[str, Any]) -> None:
    if "problem" in plugin:
        print_text(wrap_to_terminal(f"{plugin['name']}: can't be used: {plugin['problem']}", 2, 4))
        return
    print_text(wrap_to_terminal(f"{plugin['name']}: {plugin['summary']}", 2, 4))
    options = plugin["options"]
    _print_rows([(o["name"], _type_and_default(o["type"], o["default"]), o["doc"]) for o in options])
    _print_rows([(c["name"], _unit_text(c), c["doc"]) for c in plugin.get("columns", ())])


def _print_rows(rows: Sequence[tuple[str, str, str]]) -> None:
    for name, kind, doc in rows:
        print_text(wrap_to_terminal(f"{name}: {kind}", 6, 4))
        if doc:
            print_text(wrap_to_terminal(doc, 10))


def _unit_text(column: dict[str, Any]) -> str:
    direction = f"{column['better']} is better" if column["better"] else "neither direction is better"
    return f"{column['unit'] or 'number'}, {direction}"


def _type_and_default(kind: str, default: str) -> str:
    """Return the type *kind* and the *default*, both in Python notation, in YAML terms."""
    type_text = _type_text(ast.parse(re.sub(r"\bOptional\[(.*)\]", r"\1 | None", kind), mode="eval").body)
    return (
        f"{type_text}; {_REQUIRED}"
        if default == _REQUIRED
        else f"{type_text}; default: {_default_text(default)}"
    )


def _type_text(node: ast.expr) -> str:
    match node:
        case ast.BinOp(left, ast.BitOr(), right):
            return f"{_type_text(left)} or {_type_text(right)}"
        case ast.Subscript(ast.Name("Union"), ast.Tuple(either)):
            return " or ".join(map(_type_text, either))
        case ast.Subscript(ast.Name("Literal"), chosen):
            values = ast.literal_eval(chosen)
            return ", ".join(map(str, values if isinstance(values, tuple) else (values,)))
        case ast.Subscript(ast.Name(name), inside) if name in _LIST_TYPES:
            return f"list of {_type_text(inside.elts[0] if isinstance(inside, ast.Tuple) else inside)}"
        case ast.Subscript(ast.Name(name)):
            return _TYPE_WORDS.get(name, name)
        case _:
            return _TYPE_WORDS.get(ast.unparse(node), ast.unparse(node))


def _default_text(default: str) -> str:
    try:
        return json.dumps(ast.literal_eval(default))
    except (SyntaxError, ValueError):
        # a plug-in may have a default that only Python can write
        return default
