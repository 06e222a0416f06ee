"""Decode frozen dataclasses from the plain JSON types that ``dataclasses.asdict`` made of them.

A missing key takes its default (an earlier version did not write it), and an unknown key is ignored (a later
version of the same format added it). Whoever wrote the data, decoded values have the types and the bounds
(``bounds``) of their fields. ``Annotated[dict[str, Any], D]`` is a mapping in which the keys of the
``TypedDict`` D have the types that D declares.
"""

import dataclasses
import enum
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from distbench.core.errors import RecordError

T = TypeVar("T")
ValueDecoder = Callable[[Any], Any]

MAX_JSON_VALUES = 1_000_000
"""Maximum values of a JSON file. A run of 10,000 cases has some 600,000; one takes up to 250 bytes parsed."""
MAX_TEXT_LENGTH = 1 << 20
"""Maximum characters of a text; distbench cuts what it writes far below (``text.truncate_middle``)."""
_MAX_DEPTH = 40
_MAX_DIGITS = 30


class _DecodingError(Exception):
    """A value that its field can't hold."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        self.keys: list[str] = []


def decode(cls: Callable[..., T], plain: object, source: str) -> T:
    """Decode *plain*, the content of *source*, to an instance of the dataclass *cls*.

    Raises:
        RecordError: a key without a default is missing, or a value has the wrong type or is out of bounds.
    """
    try:
        instance: T = _decoder_of(cls)(plain)
    except _DecodingError as misfit:
        place = f"{'.'.join(reversed(misfit.keys))}: " if misfit.keys else ""
        raise RecordError(f"{source}: {place}{misfit.problem}") from None
    return instance


def parse_json(data: bytes, source: str) -> Any:
    """Parse *data*, the content of *source*, as JSON.

    Raises:
        RecordError: it is not JSON, or larger or deeper than any that distbench writes.
    """
    # a value takes at least two bytes, so values need not be counted in most files
    if len(data) > 2 * MAX_JSON_VALUES and sum(map(data.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES:
        raise RecordError(f"{source}: more than {MAX_JSON_VALUES:,} values; not written by distbench")
    try:
        return json.loads(data.decode(), parse_int=_parse_int)
    except json.JSONDecodeError as error:
        why = "the file is empty" if not data.strip() else f"line {error.lineno}: {error.msg}"
        raise RecordError(f"{source}: corrupt: not valid JSON: {why}") from error
    except RecursionError as error:
        raise RecordError(f"{source}: corrupt: nested too deeply") from error
    # bytes that are not UTF-8, or a number that is too large
    except ValueError as error:
        raise RecordError(f"{source}: corrupt: {error}") from error


def _parse_int(digits: str) -> int:
    """Integer that converts to a float without an overflow: most are used as one."""
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number of more than {_MAX_DIGITS} digits")
    return int(digits)


def replace_nonfinite(data: Any) -> Any:
    """*data* with null in place of infinities and NaN, which JSON lacks."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {str(key): replace_nonfinite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [replace_nonfinite(value) for value in data]
    return data


@functools.cache
def is_finite_number(value: Any) -> bool:
    """True if *value*, of a record, is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def finite_number(value: Any) -> float:
    """*value*, of a record, as a number; 0 if it is no finite one."""
    return float(value) if is_finite_number(value) else 0.0


def _decoder_of(hint: Any) -> ValueDecoder:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _dataclass_decoder(hint)
    if origin is Annotated:
        return _bounded_decoder(_decoder_of(parts[0]), parts[1:])
    if origin is Literal:
        kinds = {type(part) for part in parts}
        expected = f"one of {', '.join(map(repr, parts))}"
        # true is not 1
        return _checking_decoder(lambda value: type(value) in kinds and value in parts, expected)
    if origin in (typing.Union, types.UnionType):
        return _union_decoder([_decoder_of(part) for part in parts if part is not types.NoneType], len(parts))
    if origin in (list, tuple):
        return _sequence_decoder(origin, parts)
    if origin in (dict, Mapping) and parts[1] is not Any:
        return _mapping_decoder(_decoder_of(parts[1]))
    if origin in (dict, Mapping):
        return _decode_any_mapping
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        words = {word.value for word in hint}
        known = _checking_decoder(
            lambda value: isinstance(value, str) and value in words, f"one of {', '.join(hint)}"
        )
        return lambda value: hint(known(value))
    return _BASIC_DECODERS.get(origin or hint, _check_depth)


def _dataclass_decoder(cls: Any) -> ValueDecoder:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = [
        (field.name, _decoder_of(hints[field.name]), field.default is field.default_factory is MISSING)
        for field in dataclasses.fields(cls)
    ]

    def read(plain: Any) -> Any:
        values = {}
        is_mapping(plain)
        for name, reader, is_required in fields:
            if name in plain:
                try:
                    values[name] = reader(plain[name])
                except _DecodingError as misfit:
                    misfit.keys.append(name)
                    raise
            elif is_required:
                raise _DecodingError(f"{name} is missing")
        return cls(**values)

    is_mapping = _BASIC_DECODERS[Mapping]
    return read


def _bounded_decoder(read: ValueDecoder, limits: Sequence[Any]) -> ValueDecoder:
    """Decoder that applies *read*, then checks bounds, or the keys of a ``TypedDict``."""
    keys = {
        key: _decoder_of(hint)
        for limit in limits
        if typing.is_typeddict(limit)
        for key, hint in typing.get_type_hints(limit, include_extras=True).items()
    }
    bounds = [limit for limit in limits if hasattr(limit, "problem")]

    def check(value: Any) -> Any:
        held = read(value)
        if held is None:
            # in ``int | None`` the bound applies to the number
            return held
        for bound in bounds:
            if problem := bound.problem(held):
                raise _DecodingError(f"{value!r:.60}: {problem}")
        for key, reader in keys.items():
            if key in held:
                try:
                    reader(held[key])
                except _DecodingError as misfit:
                    misfit.keys.append(key)
                    raise
        return held

    return check


def _union_decoder(readers: Sequence[ValueDecoder], parts: int) -> ValueDecoder:
    """Decoder that tries *readers* in order; it takes null if they are fewer than *parts*."""
    *others, last = readers
    takes_null = len(readers) < parts

    def read(value: Any) -> Any:
        if value is None and takes_null:
            return None
        for reader in others:
            with suppress(_DecodingError):
                return reader(value)
        return last(value)

    return read


def _sequence_decoder(kind: type, parts: Sequence[Any]) -> ValueDecoder:
    """Decoder of a list, or of a tuple of any length or of the types of its hint."""
    readers = [_decoder_of(part) for part in parts if part is not Ellipsis]
    length = len(parts) if kind is tuple and parts[-1] is not Ellipsis else None

    def read(value: Any) -> Any:
        if length is not None and len(is_list(value)) != length:
            raise _DecodingError(f"{value!r:.60}: expected {length} values")
        made: list[Any] = []
        item_readers = readers if length else repeat(readers[0])
        try:
            for read_item, item in zip(item_readers, is_list(value), strict=False):
                made.append(read_item(item))
        except _DecodingError as misfit:
            misfit.keys.append(str(len(made)))
            raise
        return kind(made)

    is_list = _checking_decoder(lambda value: isinstance(value, list | tuple), "a list")
    return read


def _mapping_decoder(read_value: ValueDecoder) -> ValueDecoder:
    """Decoder of a mapping from text.

    A mapping that equals the last decoded one gives the same object: records of a run repeat descriptions.
    """
    last: list[Any] = [None, None]

    def read(plain: Any) -> Any:
        if is_mapping(plain) == last[0]:
            return last[1]
        made = {}
        for key, held in plain.items():
            try:
                made[is_text(key)] = read_value(held)
            except _DecodingError as misfit:
                misfit.keys.append(f"{key!s:.60}")
                raise
        last[:] = plain, made
        return made

    is_mapping, is_text = _BASIC_DECODERS[Mapping], _BASIC_DECODERS[str]
    return read


def _decode_any_mapping(plain: Any) -> Any:
    """Check a mapping of arbitrary JSON values, and return it."""
    _check_depth(_BASIC_DECODERS[Mapping](plain))
    return plain


def _check_depth(value: Any, depth: int = 0) -> Any:
    """Check that *value*, of any type, is not nested too deeply, and return it."""
    if depth > _MAX_DEPTH:
        raise _DecodingError(f"nested deeper than {_MAX_DEPTH} levels")
    if type(value) in _CONTAINERS:
        for held in value.values() if type(value) is dict else value:
            if type(held) in _CONTAINERS:
                _check_depth(held, depth + 1)
    return value


def _checking_decoder(fits: Callable[[Any], bool], expected: str) -> ValueDecoder:
    def read(value: Any) -> Any:
        if not fits(value):
            raise _DecodingError(f"{value!r:.60}: expected {expected}")
        return value

    return read


_CONTAINERS = (dict, list, tuple)
_BASIC_DECODERS: dict[Any, ValueDecoder] = {
    str: _checking_decoder(
        lambda value: isinstance(value, str) and len(value) <= MAX_TEXT_LENGTH,
        f"text of at most {MAX_TEXT_LENGTH:,} characters",
    ),
    bool: _checking_decoder(lambda value: type(value) is bool, "true or false"),
    int: _checking_decoder(lambda value: type(value) is int, "a whole number"),
    float: _checking_decoder(lambda value: type(value) in (int, float), "a number"),
    dict: _checking_decoder(lambda value: isinstance(value, Mapping), "a mapping"),
    Mapping: _checking_decoder(lambda value: isinstance(value, Mapping), "a mapping"),
}
_BASIC_DECODERS[Path] = lambda value: Path(_BASIC_DECODERS[str](value))
