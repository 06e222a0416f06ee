"""Checks mappings against dataclasses, and says what is wrong in words for people.

The rules of types are pydantic's, in strict mode on JSON: ``"10"`` is no number, 1 is no truth
value. Unknown keys, bounds and the words are ours.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from distbench.case import Limits, Measure, Optimizer, Precision
from distbench.errors import UsageError, did_you_mean
from distbench.job import Check, Checkpoint, Converge
from distbench.spec.places import KeyPath

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """Something wrong at a path of a suite, before it is known which line that came from."""

    path: KeyPath
    message: str
    value: object = None
    combined: tuple[str, ...] = ()
    """The fields of the section that don't go together, where no single value is wrong."""


@dataclass(frozen=True)
class Bound:
    """The range of a number."""

    low: float
    high: float = 2**31 - 1
    open_low: bool = False
    """Whether *low* itself is out of range."""
    open_high: bool = False

    def problem(self, value: float) -> str | None:
        """Return what is wrong with *value*, or None."""
        if value < self.low or (self.open_low and value == self.low):
            return f"must be {'above' if self.open_low else 'at least'} {self.low:g}"
        if value > self.high or (self.open_high and value == self.high):
            return f"must be {'below' if self.open_high else 'at most'} {self.high:.15g}"
        return None


_POSITIVE = Bound(0, open_low=True)
_COUNT = Bound(1)
_FRACTION = Bound(0, 1, open_high=True)

_BOUNDS: dict[type, dict[str, Bound]] = {
    Optimizer: {
        "lr": _POSITIVE,
        "betas": _FRACTION,
        "eps": _POSITIVE,
        "momentum": _FRACTION,
        "weight_decay": Bound(0),
        "clip_grad_norm": _POSITIVE,
    },
    Precision: {"loss_scale": _POSITIVE},
    Measure: {
        # optimizers make their state in the first step, and what they hold is checked before timing
        "warmup": Bound(1, 1_000_000),
        "steps": Bound(1, 1_000_000),
        "trials": Bound(0, 10_000),
        "profile_steps": Bound(0, 10_000),
        "unsynced_steps": Bound(0, 1_000_000),
        "check_steps": Bound(1, 10_000),
    },
    Check: {
        "steps": Bound(1, 10_000),
        "sgd_lr": _POSITIVE,
        # fewer tell nothing of a spread
        "perturbed": Bound(4, 1000),
        "false_alarm": Bound(1e-6, 0.5),
    },
    Converge: {
        "max_steps": Bound(1, 10_000_000),
        "eval_every": Bound(1, 1_000_000),
        "eval_samples": Bound(1, 1_000_000),
        "seeds": Bound(1, 1000),
        "gradients_every": Bound(0, 1_000_000),
        "replicas_every": Bound(0, 1_000_000),
    },
    # before its first step an optimizer has no state that could be lost
    Checkpoint: dict.fromkeys(("steps_before", "steps_after"), Bound(1, 10_000)),
    Limits: dict.fromkeys((field.name for field in dataclasses.fields(Limits)), _POSITIVE),
}


def set_bounds(cls: type, bounds: Mapping[str, Bound]) -> None:
    """Add the bounds of a section's numbers."""
    _BOUNDS[cls] = dict(bounds)


def check(cls: type[T], raw: Mapping[str, Any], path: KeyPath) -> tuple[T | None, list[Finding]]:
    """Return the *cls* that the mapping *raw* at *path* describes, or None and all that is wrong."""
    findings = [
        Finding((*path, key), _unknown(key, field_names(cls)), value)
        for key, value in raw.items()
        if key not in field_names(cls)
    ]
    known = {key: value for key, value in raw.items() if key in field_names(cls)}
    value, wrong = _validated(cls, known, path)
    findings += wrong
    ill_typed = {found.path[: len(path) + 1] for found in wrong}
    findings += [found for found in _out_of_bounds(cls, known, path) if found.path not in ill_typed]
    return (None if findings else value), findings


def _unknown(key: str, names: Sequence[str]) -> str:
    return f"unknown key; {did_you_mean(key, names)}" if names else "unknown key; it takes no options"


def to_plain(value: object) -> dict[str, Any]:
    """Return the fields of a checked dataclass as plain JSON types."""
    kind: Any = type(value)
    plain: dict[str, Any] = _adapter(kind).dump_python(value, mode="json")
    return plain


def defaults(cls: Any) -> dict[str, Any]:
    """Return the defaults of a section as plain JSON types, without the keys that have none."""
    from pydantic_core import to_jsonable_python

    fields = dataclasses.fields(cls)
    found = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
    found |= {f.name: f.default_factory() for f in fields if f.default_factory is not dataclasses.MISSING}
    plain: dict[str, Any] = to_jsonable_python(found)
    return plain


def field_names(cls: type) -> tuple[str, ...]:
    """Return the keys that a section takes.

    Raises:
        UsageError: a plug-in that is no dataclass, or lacks methods.
    """
    if "__dataclass_fields__" not in vars(cls):
        raise UsageError(f"{cls.__module__}.{cls.__name__}: a plug-in is a frozen dataclass")
    if inspect.isabstract(cls):
        lacking = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise UsageError(f"{cls.__module__}.{cls.__name__}: the plug-in lacks {lacking}")
    return tuple(field.name for field in dataclasses.fields(cls))


def is_axis(cls: Any, field: str, value: object) -> bool:
    """Return whether *value* lists several values of *field* (and is no value that is a list)."""
    return isinstance(value, list) and field in field_names(cls) and _depth(value) > _list_depth(cls, field)


def _depth(value: object) -> int:
    return 1 + max((_depth(item) for item in value), default=0) if isinstance(value, list) else 0


@functools.cache
def _list_depth(cls: Any, field: str) -> float:
    return _hint_depth(_hints(cls)[field])


def _hint_depth(hint: object) -> float:
    """Return how deeply nested a list a type takes: 0 for int, 1 for ``tuple[float, float]``."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    inner = max((_hint_depth(arg) for arg in args), default=0.0)
    if hint is Any:
        return math.inf
    if origin in (typing.Union, types.UnionType):
        return inner
    found = origin or hint
    is_list = isinstance(found, type) and issubclass(found, (list, tuple, set, frozenset, Sequence))
    return 1 + inner if is_list and found is not str else 0.0


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except NameError as error:
        raise UsageError(
            f"{cls.__module__}.{cls.__name__}: the type of an option is unknown: {error}"
        ) from error


@functools.cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def _validated(cls: Any, raw: Mapping[str, Any], path: KeyPath) -> tuple[Any, list[Finding]]:
    from pydantic import ValidationError

    try:
        return _adapter(cls).validate_json(json.dumps(raw), strict=True), []
    except ValidationError as error:
        return None, _in_words(error.errors(include_url=False), raw, path)


def _in_words(errors: Sequence[ErrorDetails], raw: Mapping[str, Any], path: KeyPath) -> list[Finding]:
    # a union fails once for each of its members, with the member's name at the end of the place
    grouped: dict[KeyPath, list[str]] = {}
    for error in errors:
        place, value = _place(error, raw)
        words = _words(error, value)
        if words not in grouped.setdefault(place, []):
            grouped[place].append(words)
    return [
        Finding((*path, *place), _either(words), _value_at(raw, place)) for place, words in grouped.items()
    ]


def _either(words: list[str]) -> str:
    first, *others = words
    return " or ".join([first, *(other.removeprefix("expected ") for other in others)])


def _place(error: ErrorDetails, raw: Mapping[str, Any]) -> tuple[KeyPath, Any]:
    value: Any = raw
    place: list[str | int] = []
    for part in error["loc"]:
        if _is_inside(value, part):
            value = value[part]
            place.append(part)
        elif error["type"] == "missing" and isinstance(value, dict):
            place.append(part)
        # else the name of a member of a union, or an item that is not there
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
    # None would read as "no value"; people write null
    return "null" if raw is None else raw


_EXPECTED = {
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


def _words(error: ErrorDetails, value: object) -> str:
    kind = error["type"]
    context = error.get("ctx", {})
    if kind == "literal_error":
        allowed = re.findall(r"[^\s',]+", str(context["expected"]).replace(" or ", " "))
        return did_you_mean(value, allowed) if len(allowed) > 1 else f"expected {allowed[0]}"
    if kind == "value_error":
        return str(context["error"])
    if kind in ("too_long", "too_short") or (kind == "missing" and isinstance(value, list)):
        return "has the wrong number of items"
    return _EXPECTED.get(kind, error["msg"][:1].lower() + error["msg"][1:])


def _out_of_bounds(cls: type, raw: Mapping[str, Any], path: KeyPath) -> list[Finding]:
    findings = []
    for key, bound in _BOUNDS.get(cls, {}).items():
        values = raw[key] if isinstance(raw.get(key), list) else [raw.get(key)]
        numbers = [value for value in values if isinstance(value, int | float)]
        problems = [problem for number in numbers if (problem := bound.problem(number))]
        findings += [Finding((*path, key), problems[0], raw[key])] if problems else []
    return findings
