"""Reads frozen dataclasses back from the plain JSON types that ``dataclasses.asdict`` made of them.

A missing key takes its default (an earlier version did not write it), and an unknown key is ignored (a later
version of the same format added it). What a mapping holds is taken as it is, unless it
is of a dataclass.
"""

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from typing import Any, Literal, TypeVar

from distbench.errors import RecordError

T = TypeVar("T")
Reader = Callable[[Any], Any]


class _Misfit(Exception):
    """A value that its field can't hold."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        self.keys: list[str] = []


def decoded(cls: Callable[..., T], plain: object, source: str) -> T:
    """Instance of the dataclass *cls* that *plain*, the content of *source*, describes.

    Raises:
        RecordError: a key without a default is missing, or a value has the wrong type.
    """
    try:
        instance: T = _reader(cls)(plain)
    except _Misfit as misfit:
        place = f"{'.'.join(reversed(misfit.keys))}: " if misfit.keys else ""
        raise RecordError(f"{source}: {place}{misfit.problem}") from None
    return instance


def finite(data: Any) -> Any:
    """*data* with null for what is infinite or no number: JSON has no word for it."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {str(key): finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return data


@functools.cache
def _reader(hint: Any) -> Reader:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _of_fields(hint)
    if origin is Literal:
        return _checked(lambda value: value in parts, f"one of {', '.join(map(repr, parts))}")
    if origin in (typing.Union, types.UnionType):
        present, *others = (_reader(part) for part in parts if part is not types.NoneType)
        # of several types a value says by itself which it is
        return lambda value: value if value is None or others else present(value)
    if origin in (list, tuple):
        items, collected = _reader(parts[0]), origin
        is_list = _checked(lambda value: isinstance(value, list | tuple), "a list")
        return lambda value: collected([items(item) for item in is_list(value)])
    if origin in (dict, Mapping) and dataclasses.is_dataclass(parts[1]):
        values, is_mapping = _reader(parts[-1]), _PLAIN[dict]
        return lambda value: {key: values(held) for key, held in is_mapping(value).items()}
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        known = _checked(lambda value: value in list(hint), f"one of {', '.join(hint)}")
        return lambda value: hint(known(value))
    return _PLAIN.get(origin or hint, lambda value: value)


def _of_fields(cls: Any) -> Reader:
    hints = typing.get_type_hints(cls)
    fields = [
        (field.name, _reader(hints[field.name]), field.default is field.default_factory is MISSING)
        for field in dataclasses.fields(cls)
    ]

    def read(plain: Any) -> Any:
        values = {}
        for name, reader, is_required in fields:
            if name in is_mapping(plain):
                try:
                    values[name] = reader(plain[name])
                except _Misfit as misfit:
                    misfit.keys.append(name)
                    raise
            elif is_required:
                raise _Misfit(f"{name} is missing")
        return cls(**values)

    is_mapping = _PLAIN[dict]
    return read


def _checked(fits: Callable[[Any], bool], expected: str) -> Reader:
    def read(value: Any) -> Any:
        if not fits(value):
            raise _Misfit(f"{value!r:.60}: expected {expected}")
        return value

    return read


_PLAIN: dict[Any, Reader] = {
    str: _checked(lambda value: isinstance(value, str), "text"),
    bool: _checked(lambda value: isinstance(value, bool), "true or false"),
    int: _checked(lambda value: type(value) is int, "a whole number"),
    float: _checked(lambda value: type(value) in (int, float), "a number"),
    dict: _checked(lambda value: isinstance(value, Mapping), "a mapping"),
    Mapping: _checked(lambda value: isinstance(value, Mapping), "a mapping"),
}
