"""Check the sections of a suite against their dataclasses, with messages for people.

Types are checked by pydantic in strict mode on JSON: ``"10"`` is not a number, 1 is not a boolean. A whole
number may be written as YAML reads any number: ``5e8`` is a float there. Unknown keys, bounds and the wording
are distbench's.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from distbench.core.bounds import Bound
from distbench.core.case import identity_fields
from distbench.core.errors import NULL, UsageError, did_you_mean
from distbench.core.suite_mistakes import KeyPath, Problem

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")


def check_section(cls: type[T], raw: Mapping[str, Any], path: KeyPath) -> tuple[T | None, list[Problem]]:
    """Parse the mapping *raw* at *path* as *cls*; return None and all its mistakes if it has any."""
    names = field_names(cls)
    known = {key: value for key, value in raw.items() if key in names}
    findings = [
        Problem((*path, key), _unknown_key_message(key, names), raw[key]) for key in raw if key not in names
    ]
    value, wrong = _validate(cls, known, path)
    findings += wrong
    ill_typed = {finding.path[: len(path) + 1] for finding in wrong}
    findings += [finding for finding in _bound_problems(cls, known, path) if finding.path not in ill_typed]
    return (None if findings else value), findings


def _unknown_key_message(key: str, names: Sequence[str]) -> str:
    return f"unknown key; {did_you_mean(key, names)}" if names else "unknown key; there are no options"


def to_json_dict(value: object) -> dict[str, Any]:
    """Identity fields of a section (``case.identity_fields``), as plain JSON types."""
    kind: Any = type(value)
    plain: dict[str, Any] = _adapter(kind).dump_python(value, mode="json")
    return {key: plain[key] for key in identity_fields(value)}


def section_defaults(cls: Any) -> dict[str, Any]:
    """Defaults of a section as plain JSON types, without keys that have none."""
    from pydantic_core import to_jsonable_python

    fields = dataclasses.fields(cls)
    values = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
    values |= {f.name: f.default_factory() for f in fields if f.default_factory is not dataclasses.MISSING}
    plain: dict[str, Any] = to_jsonable_python(values)
    return plain


def all_have_defaults(cls: Any) -> bool:
    """True if every field of a section has a default."""
    return len(section_defaults(cls)) == len(dataclasses.fields(cls))


def field_names(cls: type) -> tuple[str, ...]:
    """Keys of a section.

    Raises:
        UsageError: a plug-in that is not a dataclass, or is missing methods.
    """
    if "__dataclass_fields__" not in vars(cls):
        raise UsageError(f"{cls.__module__}.{cls.__name__}: a plug-in must be a frozen dataclass")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise UsageError(f"{cls.__module__}.{cls.__name__}: the plug-in is missing {missing}")
    return tuple(field.name for field in dataclasses.fields(cls))


def lists_values(cls: Any, field: str, value: object) -> bool:
    """True if *value* lists several values of *field*, rather than being a single value that is a list."""
    is_listed = isinstance(value, list) and field in field_names(cls)
    return is_listed and _list_depth(value) > _type_list_depth(_hints(cls)[field])


def lists_values_inside(cls: Any, field: str, value: object) -> bool:
    """True if *value*, of a key of the mapping in *field*, lists several values of that key."""
    if not isinstance(value, list) or field not in field_names(cls):
        return False
    depths = [_type_list_depth(typing.get_args(mapping)[1]) for mapping in _mappings(cls, field)]
    return bool(depths) and _list_depth(value) > max(depths)


def _list_depth(value: object) -> int:
    return 1 + max((_list_depth(item) for item in value), default=0) if isinstance(value, list) else 0


def _type_list_depth(hint: object) -> float:
    """Nesting depth of the lists that a type accepts: 0 for int, 1 for ``tuple[float, float]``."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    inner = max((_type_list_depth(arg) for arg in args), default=0.0)
    if hint is Any:
        return math.inf
    if origin in (typing.Union, types.UnionType):
        return inner
    kind = origin or hint
    is_list = isinstance(kind, type) and issubclass(kind, (list, tuple, set, frozenset, Sequence))
    return 1 + inner if is_list and kind is not str else 0.0


def mapping_keys(cls: Any, field: str) -> tuple[str, ...]:
    """Keys that a mapping in *field* of a section may have; empty: any, or there is no such field."""
    return tuple(key for part in _mappings(cls, field) for key in typing.get_args(typing.get_args(part)[0]))


def _mappings(cls: Any, field: str) -> list[Any]:
    """Types of mapping that *field* of a section takes."""
    hint = _hints(cls).get(field)
    return [part for part in (hint, *typing.get_args(hint)) if typing.get_origin(part) is dict]


def allows_axis(cls: Any, field: str) -> bool:
    """True if a list in place of *field* may mean several values of it."""
    return not math.isinf(_type_list_depth(_hints(cls)[field]))


def field_schema(cls: Any, field: str) -> dict[str, Any]:
    """JSON Schema of *field* of a section, by its type and bounds."""
    from pydantic import TypeAdapter

    return TypeAdapter(_hints(cls, with_bounds=True)[field]).json_schema()


@functools.cache
def _hints(cls: Any, *, with_bounds: bool = False) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, include_extras=with_bounds)
    except NameError as error:
        raise UsageError(
            f"{cls.__module__}.{cls.__name__}: the type of an option is unknown: {error}"
        ) from error


@functools.cache
def _field_bounds(cls: Any) -> dict[str, Bound]:
    """Bound of each field that has one, also inside a union or a tuple."""
    bounds = {name: next(_find_bounds(hint), None) for name, hint in _hints(cls, with_bounds=True).items()}
    return {name: bound for name, bound in bounds.items() if bound}


def _find_bounds(hint: Any) -> Iterator[Bound]:
    yield from (extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Bound))
    for inner in typing.get_args(hint):
        yield from _find_bounds(inner)


@functools.cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def _validate(cls: Any, raw: Mapping[str, Any], path: KeyPath) -> tuple[Any, list[Problem]]:
    value, errors = _parse(cls, raw)
    if whole := [place for error in errors if (place := _whole_float_path(error, raw))]:
        raw = functools.reduce(_with_integer, whole, raw)
        value, errors = _parse(cls, raw)
    return value, _to_problems(errors, raw, path)


def _parse(cls: Any, raw: Mapping[str, Any]) -> tuple[Any, list[ErrorDetails]]:
    from pydantic import ValidationError

    try:
        return _adapter(cls).validate_json(json.dumps(raw), strict=True), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def _whole_float_path(error: ErrorDetails, raw: Mapping[str, Any]) -> KeyPath | None:
    """Place of a float that is whole where an integer is expected; None if there is none."""
    place, value = _place(error, raw)
    is_whole = isinstance(value, float) and value.is_integer()
    return place if is_whole and error["type"] == "int_type" else None


def _with_integer(raw: Any, place: KeyPath) -> Any:
    """A copy of *raw* with an integer at *place*."""
    if not place:
        return int(raw)
    part, *inside = place
    copy: Any = raw.copy()
    copy[part] = _with_integer(copy[part], tuple(inside))
    return copy


def _to_problems(errors: Sequence[ErrorDetails], raw: Mapping[str, Any], path: KeyPath) -> list[Problem]:
    # a union fails once per member, with the member's name at the end of the place
    grouped: dict[KeyPath, list[str]] = {}
    for error in errors:
        place, value = _place(error, raw)
        words = _message(error, value)
        if words not in grouped.setdefault(place, []):
            grouped[place].append(words)
    # the member of a union that fails inside of the value is the intended one
    deepest = [place for place in grouped if not any(_is_below(other, place) for other in grouped)]
    return [
        Problem((*path, *place), _join_alternatives(grouped[place]), _value_at(raw, place))
        for place in deepest
    ]


def _is_below(place: KeyPath, other: KeyPath) -> bool:
    return len(place) > len(other) > 0 and place[: len(other)] == other


def _join_alternatives(words: list[str]) -> str:
    first, *others = words
    others = [other.removeprefix("expected ").replace("Allowed: ", "one of ") for other in others]
    return ", or ".join([first, *others]) if " or " in first else " or ".join([first, *others])


def _place(error: ErrorDetails, raw: Mapping[str, Any]) -> tuple[KeyPath, Any]:
    value: Any = raw
    place: list[str | int] = []
    for part in error["loc"]:
        if _is_inside(value, part):
            value = value[part]
            place.append(part)
        elif error["type"] == "missing" and isinstance(value, dict):
            place.append(part)
        # otherwise the name of a member of a union, or a missing item
    return tuple(place), value


def _is_inside(value: object, part: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value


def _value_at(raw: Any, place: KeyPath) -> Any:
    for part in place:
        if isinstance(raw, dict) and part not in raw:
            return None
        raw = raw[part]
    return NULL if raw is None else raw


# pydantic: 'a', 'b' or 3
_LITERAL_PATTERN = re.compile(r"'([^']*)'|(?<!\S)(?!or\b)([^\s',]+)")

_MESSAGES = {
    "missing": "missing; it has no default",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "string_type": "expected text",
    "bool_type": "expected true or false",
    "list_type": "expected a list",
    "tuple_type": "expected a list",
    "dict_type": "expected a mapping",
    "dataclass_type": "expected a mapping",
    "path_type": "expected a path",
    "none_required": "expected null",
}


def _message(error: ErrorDetails, value: object) -> str:
    kind = error["type"]
    context = error.get("ctx", {})
    if kind == "literal_error":
        allowed = [quoted or other for quoted, other in _LITERAL_PATTERN.findall(context["expected"])]
        return did_you_mean(value, allowed) if len(allowed) > 1 else f"expected {allowed[0]}"
    if kind == "value_error":
        return str(context["error"])
    if kind in ("too_long", "too_short") or (kind == "missing" and isinstance(value, list)):
        return "has the wrong number of items"
    return _MESSAGES.get(kind, error["msg"][:1].lower() + error["msg"][1:])


def _bound_problems(cls: type, raw: Mapping[str, Any], path: KeyPath) -> list[Problem]:
    findings = []
    for key, bound in _field_bounds(cls).items():
        given = raw.get(key)
        if isinstance(given, dict):
            findings += _mapping_bound_problems(given, bound, (*path, key))
            continue
        values = given if isinstance(given, list) else [given]
        problems = [problem for value in values if (problem := _bound_problem(value, bound))]
        findings += [Problem((*path, key), problems[0], given)] if problems else []
    return findings


def _mapping_bound_problems(raw: Mapping[str, Any], bound: Bound, path: KeyPath) -> list[Problem]:
    wrong = {key: problem for key, value in raw.items() if (problem := _bound_problem(value, bound))}
    return [Problem((*path, key), problem, raw[key]) for key, problem in wrong.items()]


def _bound_problem(value: object, bound: Bound) -> str | None:
    return bound.problem(value) if isinstance(value, int | float) else None
