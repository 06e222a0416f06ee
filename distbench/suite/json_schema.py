"""JSON Schema of a suite, made of the same fields, types, bounds and docs that the loader checks with.

It accepts whatever the loader accepts, and refuses mistakes in a single value: unknown keys,
types, ranges, names of plug-ins and of their options. Only the loader refuses what depends on other keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from distbench.core import registry
from distbench.core.case import MAX_WORLD_SIZE
from distbench.core.errors import UsageError
from distbench.core.job import job_kinds
from distbench.core.measurement import SuiteLimits
from distbench.suite import gate
from distbench.suite.cells import LABEL_OPTION
from distbench.suite.cost import DeviceCost
from distbench.suite.parser import TopLevelKeys
from distbench.suite.plugin_options import MESH_OPTION, foreign_dimensions, required_option
from distbench.suite.sections import (
    all_have_defaults,
    allows_axis,
    field_names,
    field_schema,
    mapping_keys,
    section_defaults,
)
from distbench.suite.strategy_labels import LABEL_DOC, LABEL_PATTERN
from distbench.suite.variables import ENV_KEY, VARIABLE_NAME
from distbench.suite.work import PLUGIN_KEYS, SCALAR_KEYS, SECTION_KEYS, ScalarSettings

Schema = dict[str, Any]

_NULL: Schema = {"type": "null"}
_TEXT: Schema = {"type": "string"}
_SIZE: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_WORLD_SIZE}
_SIZES: Schema = {"type": "array", "items": _SIZE, "minItems": 1, "uniqueItems": True}
_VARIABLE: Schema = {"type": ["string", "integer"]}
_FRACTION: Schema = {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {**_TEXT, "title": "3%"}]}
AXIS_TITLE = "several values, each a case"
"""Title of the schema of a value that may list several."""
_SHORTHAND_FIELDS = {"optimizer": "name", "precision": "compute"}
"""Sections for which the value of one field may stand."""
_SHORTHAND_WORDS: dict[str, list[Schema]] = {"precision": [{"const": "float8"}]}
"""Shorthand words for several fields of a section."""


def json_schema() -> Schema:
    """JSON Schema (draft 2020-12) of a suite, with the plug-ins that are found here.

    Each value has its ``description``, and its ``default`` if it has one.

    Raises:
        UsageError: a kind of job can't be imported, or two share a word.
    """
    docs = {
        option.name: option.doc
        for option in (*registry.option_infos(TopLevelKeys), *registry.option_infos(ScalarSettings))
    }
    docs |= {kind.name: registry.summary(kind.section) for kind in job_kinds()}
    standard = {
        key: value for key, value in section_defaults(TopLevelKeys).items() if value not in (None, "", [], {})
    }
    required = [key for key in field_names(TopLevelKeys) if key not in section_defaults(TopLevelKeys)]
    properties = {}
    for key, schema in {**_work_properties(), **_other_properties()}.items():
        # null leaves a key out
        full = schema if key in required else _any_of(schema, _NULL)
        properties[key] = _described(full, docs.get(key, ""), standard, key)
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {
        "$schema": dialect,
        "title": "A suite of distbench",
        **_closed_object(properties),
        "required": required,
    }


def _work_properties() -> dict[str, Schema]:
    """Keys of the work, each of which may list several values."""
    work = {root: _plugin_schema(kind, listed=True) for root, kind in PLUGIN_KEYS.items()}
    items = dict(work)
    for root, cls in SECTION_KEYS.items():
        short = [field_schema(cls, _SHORTHAND_FIELDS[root])] if root in _SHORTHAND_FIELDS else []
        short += _SHORTHAND_WORDS.get(root, [])
        work[root] = _any_of(*short, _section_schema(cls, listed=True))
        items[root] = _any_of(*short, _section_schema(cls))
    items[ENV_KEY] = _variables_schema(_VARIABLE)
    work[ENV_KEY] = _variables_schema(_any_of(_VARIABLE, _axis_of(_VARIABLE)))
    work |= {root: field_schema(ScalarSettings, root) for root in SCALAR_KEYS}
    items |= {root: work[root] for root in SCALAR_KEYS}
    return {root: _any_of(schema, _axis_of(items[root])) for root, schema in work.items()}


def _variables_schema(value: Schema) -> Schema:
    return {
        "type": "object",
        "patternProperties": {f"^{VARIABLE_NAME}$": value},
        "additionalProperties": False,
    }


def _other_properties() -> dict[str, Schema]:
    part = _dotted_paths(lambda schema: _any_of(schema, _axis_of(schema)))
    part["properties"] |= {"strategy": _TEXT, "world_size": _any_of(_SIZE, _SIZES)}
    return {
        "name": _TEXT,
        "description": _TEXT,
        "strategies": _list(_strategy_schema()),
        "world_sizes": _any_of({"const": "auto"}, _SIZES),
        "device": field_schema(TopLevelKeys, "device"),
        "axes": _dotted_paths(_list),
        "include": {"type": "array", "items": part},
        "exclude": {"type": "array", "items": part},
        "only": {"type": "array", "items": _TEXT},
        "environments": {"type": "object", "additionalProperties": _TEXT},
        "limits": _section_schema(SuiteLimits),
        **{kind.name: _job_schema(kind.section, always=kind.is_default) for kind in job_kinds()},
        "gate": _gate_schema(),
        "cost": _section_schema(DeviceCost),
        "launcher": _any_of({"const": "auto"}, _plugin_schema("launchers", complete=True)),
        "metrics": _list(_plugin_schema("metrics", complete=True)),
    }


def _job_schema(section: type[Any], *, always: bool) -> Schema:
    """Section of a kind of job; ``true`` stands for its defaults."""
    on = [{"type": "boolean"}] if all_have_defaults(section) else [{"const": False}]
    return _section_schema(section) if always else _any_of(*on, _section_schema(section))


def _gate_schema() -> Schema:
    tolerance = _any_of(_FRACTION, {"const": False}, *map(_single_key, ("max_drop", "max_increase")))
    docs = {option.name: option.doc for option in registry.option_infos(gate.Tolerances)}
    tolerances = {
        key: _described(tolerance, doc, section_defaults(gate.Tolerances), key) for key, doc in docs.items()
    }
    rules = {option.name: option.doc for option in registry.option_infos(gate.GateRules)}
    plain = {
        key: _described(field_schema(gate.GateRules, key), rules[key], section_defaults(gate.GateRules), key)
        for key in gate.PLAIN_KEYS
    }
    kind = _described(_any_of({"enum": list(get_args(gate.VerdictDemand))}, _FRACTION), rules["required"])
    by_glob = {"type": "object", "additionalProperties": _closed_object(tolerances)}
    others = dict.fromkeys(gate.optional_kinds(), kind)
    return _closed_object(
        {**tolerances, "strategies": _described(by_glob, rules["strategies"]), **plain, **others}
    )


def _single_key(key: str) -> Schema:
    return {"title": f"{{{key}: 3%}}", **_closed_object({key: _FRACTION}), "required": [key]}


def _dotted_paths(form: Callable[[Schema], Schema]) -> Schema:
    """Values by dotted path into the work, each in the *form* that it has there."""
    fields = {
        f"{root}.{key}": form(field_schema(cls, key))
        for root, cls in SECTION_KEYS.items()
        for key in field_names(cls)
    }
    scalars = {root: form(field_schema(ScalarSettings, root)) for root in SCALAR_KEYS}
    rest = f"^({'|'.join([*SECTION_KEYS, ENV_KEY])}|({'|'.join(PLUGIN_KEYS)})(\\..+)?)$"
    patterns = {rest: form({}), f"^{ENV_KEY}\\.{VARIABLE_NAME}$": form(_VARIABLE)}
    by_path = {**_closed_object({**fields, **scalars}), "patternProperties": patterns}
    return {"title": "mapping of dotted paths", **by_path}


def _plugin_schema(kind: str, *, listed: bool = False, complete: bool = False) -> Schema:
    """A plug-in by name, or with options; if *complete*, with each that has no default."""
    names = registry.plugin_names(kind)
    options = {name: _options_schema(kind, name, listed=listed, complete=complete) for name in names}
    alone = [name for name in names if "required" not in options[name]]
    for name in names if kind in PLUGIN_KEYS.values() else ():
        if option := required_option(kind, name):
            options[name] = _any_of(options[name], {"title": option, "type": "string"})
    for name in alone:
        options[name] = _described(_any_of(options[name], _NULL), _summary(kind, name))
    one = {"title": "{name: {option: value}}", "minProperties": 1, "maxProperties": 1}
    return _any_of({"enum": alone}, {**one, **_closed_object(options)})


def _strategy_schema() -> Schema:
    """A strategy, whose options may stand beside a label of its own."""
    schema = _plugin_schema("strategies", listed=True, complete=True)
    label = _described({**_TEXT, "pattern": f"^{LABEL_PATTERN}$"}, LABEL_DOC)
    for options in schema["anyOf"][1]["properties"].values():
        # null, and the options of a plug-in that can't be used, have none
        for form in options.get("anyOf", [options]):
            form.get("properties", {})[LABEL_OPTION] = label
    return schema


def _options_schema(kind: str, name: str, *, listed: bool, complete: bool) -> Schema:
    try:
        return _section_schema(registry.load_plugin(kind, name), listed=listed, complete=complete)
    except UsageError:
        # the loader reports errors in its file
        return {}


def _summary(kind: str, name: str) -> str:
    try:
        return registry.summary(registry.load_plugin(kind, name))
    except UsageError as error:
        return f"can't be used: {error}"


def _section_schema(cls: type[Any], *, listed: bool = False, complete: bool = True) -> Schema:
    """A mapping of the fields of *cls*; if *listed*, a list in place of a value means several.

    Unless it must be *complete*, fields without default may be left out: an axis may give them.
    """
    standard, docs = section_defaults(cls), {option.name: option.doc for option in registry.option_infos(cls)}
    properties = {}
    for key in field_names(cls):
        schema = field_schema(cls, key)
        if key == MESH_OPTION:
            schema = _allow_size_one(schema, cls)
        if listed and allows_axis(cls, key):
            schema = _any_of(_allow_axes_inside(schema), _axis_of(schema))
        properties[key] = _described(schema, docs[key], standard, key)
    required = [key for key in properties if key not in standard] if complete else []
    return _described(_closed_object(properties), registry.summary(cls)) | (
        {"required": required} if required else {}
    )


def _allow_size_one(schema: Schema, cls: type[Any]) -> Schema:
    """Extend *schema* of the mesh of a strategy: any other dimension may be 1."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [_allow_size_one(member, cls) for member in schema["anyOf"]]}
    names = mapping_keys(cls, MESH_OPTION)
    if "propertyNames" not in schema or not names:
        return schema
    others = foreign_dimensions(names)
    ones = {name: {"const": 1} for name in others}
    return {**schema, "properties": ones, "propertyNames": {"enum": [*names, *others]}}


def _allow_axes_inside(schema: Schema) -> Schema:
    """Extend *schema* of an option with lists of values.

    Where it is a mapping, a list in place of one of its values means several.
    """
    if "anyOf" in schema:
        return {**schema, "anyOf": [_allow_axes_inside(member) for member in schema["anyOf"]]}
    values = schema.get("additionalProperties")
    if not isinstance(values, dict):
        return schema
    ones = {name: _any_of(one, _axis_of(one)) for name, one in schema.get("properties", {}).items()}
    more = {"properties": ones} if ones else {}
    return {**schema, "additionalProperties": _any_of(values, _axis_of(values)), **more}


def _described(schema: Schema, doc: str, standard: Mapping[str, Any] | None = None, key: str = "") -> Schema:
    """Return *schema* with its description, and the default of *key* if *standard* has one."""
    default = {"default": standard[key]} if standard and key in standard else {}
    return {**schema, **({"description": doc.replace("``", "`")} if doc else {}), **default}


def _closed_object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def _axis_of(items: Schema) -> Schema:
    return {"title": AXIS_TITLE, **_list(items)}


def _any_of(*schemas: Schema) -> Schema:
    flat = [part for schema in schemas for part in (schema["anyOf"] if {*schema} == {"anyOf"} else [schema])]
    return flat[0] if len(flat) == 1 else {"anyOf": flat}
