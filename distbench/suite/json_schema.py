"""JSON Schema of a suite, made of the same fields, types, bounds and docs that the loader checks with.

It accepts whatever the loader accepts, and refuses what can be said of one value by itself: unknown keys,
types, ranges, names of plug-ins and of their options. What depends on other keys only the loader refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from distbench.core import registry
from distbench.core.case import MOST_RANKS, Deadlines
from distbench.core.errors import UsageError
from distbench.core.job import job_kinds
from distbench.suite import gate, mesh_option
from distbench.suite.cost import Cost
from distbench.suite.parser import Top
from distbench.suite.sections import defaults, field_names, field_schema, has_defaults, keys_of, takes_lists
from distbench.suite.work import PLUGIN_ROOTS, SCALAR_ROOTS, SECTION_ROOTS, Scalars

Schema = dict[str, Any]

_NULL: Schema = {"type": "null"}
_TEXT: Schema = {"type": "string"}
_SIZE: Schema = {"type": "integer", "minimum": 1, "maximum": MOST_RANKS}
_SIZES: Schema = {"type": "array", "items": _SIZE, "minItems": 1, "uniqueItems": True}
_FRACTION: Schema = {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {**_TEXT, "title": "3%"}]}
SEVERAL = "several values, each a case"
"""Title of the form of a value that lists several."""
_SHORT = {"optimizer": "name", "precision": "compute"}
"""Sections for which the value of one field may stand."""
_WORDS: dict[str, list[Schema]] = {"precision": [{"const": "float8"}]}
"""Words that stand for several fields of a section."""


def json_schema() -> Schema:
    """JSON Schema (draft 2020-12) of a suite, with the plug-ins that are found here.

    Each value has its ``description``, and its ``default`` if it has one.

    Raises:
        UsageError: a kind of job can't be imported, or two share a word.
    """
    docs = {option.name: option.doc for option in (*registry.options(Top), *registry.options(Scalars))}
    docs |= {kind.name: registry.summary(kind.section) for kind in job_kinds()}
    standard = {key: value for key, value in defaults(Top).items() if value not in (None, "", [], {})}
    required = [key for key in field_names(Top) if key not in defaults(Top)]
    properties = {}
    for key, schema in {**_work(), **_rest()}.items():
        # null leaves a key out
        full = schema if key in required else _either(schema, _NULL)
        properties[key] = _told(full, docs.get(key, ""), standard, key)
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "title": "A suite of distbench", **_closed(properties), "required": required}


def _work() -> dict[str, Schema]:
    """Keys of the work, each of which may list several values."""
    work = {root: _plugin(kind, listed=True) for root, kind in PLUGIN_ROOTS.items()}
    items = dict(work)
    for root, cls in SECTION_ROOTS.items():
        short = [field_schema(cls, _SHORT[root])] if root in _SHORT else []
        short += _WORDS.get(root, [])
        work[root] = _either(*short, _section(cls, listed=True))
        items[root] = _either(*short, _section(cls))
    work |= {root: field_schema(Scalars, root) for root in SCALAR_ROOTS}
    items |= {root: work[root] for root in SCALAR_ROOTS}
    return {root: _either(schema, _several(items[root])) for root, schema in work.items()}


def _rest() -> dict[str, Schema]:
    part = _by_path(lambda schema: _either(schema, _several(schema)))
    part["properties"] |= {"strategy": _TEXT, "world_size": _either(_SIZE, _SIZES)}
    return {
        "name": _TEXT,
        "description": _TEXT,
        "strategies": _list(_plugin("strategies", listed=True, complete=True)),
        "world_sizes": _either({"const": "auto"}, _SIZES),
        "device": field_schema(Top, "device"),
        "axes": _by_path(_list),
        "include": {"type": "array", "items": part},
        "exclude": {"type": "array", "items": part},
        "only": {"type": "array", "items": _TEXT},
        "environments": {"type": "object", "additionalProperties": _TEXT},
        "limits": _section(Deadlines),
        **{kind.name: _job(kind.section, always=kind.always) for kind in job_kinds()},
        "gate": _gate(),
        "cost": _section(Cost),
        "launcher": _either({"const": "auto"}, _plugin("launchers", complete=True)),
        "metrics": _list(_plugin("metrics", complete=True)),
    }


def _job(section: type[Any], *, always: bool) -> Schema:
    """Section of a kind of job; ``true`` stands for its defaults."""
    on = [{"type": "boolean"}] if has_defaults(section) else [{"const": False}]
    return _section(section) if always else _either(*on, _section(section))


def _gate() -> Schema:
    tolerance = _either(_FRACTION, {"const": False}, *map(_only, ("max_drop", "max_increase")))
    docs = {option.name: option.doc for option in registry.options(gate.Tolerances)}
    tolerances = {key: _told(tolerance, doc, defaults(gate.Tolerances), key) for key, doc in docs.items()}
    rules = {option.name: option.doc for option in registry.options(gate.GateRules)}
    plain = {
        key: _told(field_schema(gate.GateRules, key), rules[key], defaults(gate.GateRules), key)
        for key in gate.PLAIN
    }
    kind = _told(_either({"enum": list(get_args(gate.Demand))}, _FRACTION), rules["required"])
    by_glob = {"type": "object", "additionalProperties": _closed(tolerances)}
    others = dict.fromkeys(gate.other_kinds(), kind)
    return _closed({**tolerances, "strategies": _told(by_glob, rules["strategies"]), **plain, **others})


def _only(key: str) -> Schema:
    return {"title": f"{{{key}: 3%}}", **_closed({key: _FRACTION}), "required": [key]}


def _by_path(form: Callable[[Schema], Schema]) -> Schema:
    """Values by dotted path into the work, each in the *form* that it has there."""
    fields = {
        f"{root}.{key}": form(field_schema(cls, key))
        for root, cls in SECTION_ROOTS.items()
        for key in field_names(cls)
    }
    scalars = {root: form(field_schema(Scalars, root)) for root in SCALAR_ROOTS}
    rest = f"^({'|'.join(SECTION_ROOTS)}|({'|'.join(PLUGIN_ROOTS)})(\\..+)?)$"
    by_path = {**_closed({**fields, **scalars}), "patternProperties": {rest: form({})}}
    return {"title": "mapping of dotted paths", **by_path}


def _plugin(kind: str, *, listed: bool = False, complete: bool = False) -> Schema:
    """A plug-in by name, or with options; if *complete*, with each that has no default."""
    names = registry.names(kind)
    options = {name: _options(kind, name, listed=listed, complete=complete) for name in names}
    alone = [name for name in names if "required" not in options[name]]
    for name in alone:
        options[name] = _told(_either(options[name], _NULL), _summary(kind, name))
    one = {"title": "{name: {option: value}}", "minProperties": 1, "maxProperties": 1}
    return _either({"enum": alone}, {**one, **_closed(options)})


def _options(kind: str, name: str, *, listed: bool, complete: bool) -> Schema:
    try:
        return _section(registry.load(kind, name), listed=listed, complete=complete)
    except UsageError:
        # the loader says what is wrong with its file
        return {}


def _summary(kind: str, name: str) -> str:
    try:
        return registry.summary(registry.load(kind, name))
    except UsageError as error:
        return f"can't be used: {error}"


def _section(cls: type[Any], *, listed: bool = False, complete: bool = True) -> Schema:
    """A mapping of the fields of *cls*; if *listed*, a list in place of a value means several.

    Unless it must be *complete*, what has no default may be left out: an axis may give it.
    """
    standard, docs = defaults(cls), {option.name: option.doc for option in registry.options(cls)}
    properties = {}
    for key in field_names(cls):
        schema = field_schema(cls, key)
        if key == mesh_option.OPTION:
            schema = _with_ones(schema, cls)
        if listed and takes_lists(cls, key):
            schema = _either(_listing_inside(schema), _several(schema))
        properties[key] = _told(schema, docs[key], standard, key)
    required = [key for key in properties if key not in standard] if complete else []
    return _told(_closed(properties), registry.summary(cls)) | ({"required": required} if required else {})


def _with_ones(schema: Schema, cls: type[Any]) -> Schema:
    """*schema* of the mesh of a strategy, in which any other dimension may be 1."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [_with_ones(member, cls) for member in schema["anyOf"]]}
    names = keys_of(cls, mesh_option.OPTION)
    if "propertyNames" not in schema or not names:
        return schema
    others = mesh_option.others(names)
    ones = {name: {"const": 1} for name in others}
    return {**schema, "properties": ones, "propertyNames": {"enum": [*names, *others]}}


def _listing_inside(schema: Schema) -> Schema:
    """*schema* of an option; where it is a mapping, a list in place of one of its values means several."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [_listing_inside(member) for member in schema["anyOf"]]}
    values = schema.get("additionalProperties")
    if not isinstance(values, dict):
        return schema
    ones = {name: _either(one, _several(one)) for name, one in schema.get("properties", {}).items()}
    more = {"properties": ones} if ones else {}
    return {**schema, "additionalProperties": _either(values, _several(values)), **more}


def _told(schema: Schema, doc: str, standard: Mapping[str, Any] | None = None, key: str = "") -> Schema:
    """*schema* with its description, and the default of *key* if *standard* has one."""
    default = {"default": standard[key]} if standard and key in standard else {}
    return {**schema, **({"description": doc.replace("``", "`")} if doc else {}), **default}


def _closed(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def _several(items: Schema) -> Schema:
    return {"title": SEVERAL, **_list(items)}


def _either(*schemas: Schema) -> Schema:
    flat = [part for schema in schemas for part in (schema["anyOf"] if {*schema} == {"anyOf"} else [schema])]
    return flat[0] if len(flat) == 1 else {"anyOf": flat}
