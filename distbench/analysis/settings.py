"""What a trial really did, as its live engine and its process told it, flat and comparable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from distbench.analysis.text import one_line
from distbench.record import Record

_PROCESS = ("threads", "tf32", "matmul_precision", "attention", "deterministic", "seed", "warm")


def settings(record: Record) -> dict[str, Any]:
    """Return what a trial's engine and process really did, flat: ``optimizer.lr``, ``process.threads``."""
    effective, process = _source(record)
    known = {f"process.{key}": value for key, value in process.items() if value is not None}
    return {**dict(_flat(effective, "")), **known}


def unsteady(records: Sequence[Record]) -> dict[str, tuple[str, ...]]:
    """Return the settings that are not the same in all *records* of one case, with what they were."""
    first = records[0]
    if all(_source(record) == _source(first) for record in records):
        return {}
    told = [settings(record) for record in records]
    values = {
        key: tuple(dict.fromkeys(text(each[key]) if key in each else "not told" for each in told))
        for key in sorted({key for each in told for key in each})
    }
    return {key: found for key, found in values.items() if len(found) > 1}


def text(value: Any) -> str:
    """Return the value of a setting as people read it; it may come from a foreign plug-in."""
    if value is None or value == []:
        return "none"
    if isinstance(value, list):
        return one_line(", ".join(map(text, value)))
    return str(value).lower() if isinstance(value, bool) else one_line(str(value))


def _source(record: Record) -> tuple[dict[str, Any], dict[str, Any]]:
    return record.effective, {key: record.environment.get(key) for key in _PROCESS}


def _flat(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{one_line(str(key))}" if prefix else one_line(str(key)))
    else:
        yield prefix, list(value) if isinstance(value, tuple) else value
