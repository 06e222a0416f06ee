"""What a trial really did, as its live engine and its process told it, flat and comparable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from distbench.record import Record

_PROCESS = ("threads", "tf32", "matmul_precision", "deterministic", "seed", "warm")


def settings(record: Record) -> dict[str, Any]:
    """Return what a trial's engine and process really did, flat: ``optimizer.lr``, ``process.threads``."""
    process = {f"process.{key}": record.environment.get(key) for key in _PROCESS}
    known = {key: value for key, value in process.items() if value is not None}
    return {**dict(_flat(record.effective, "")), **known}


def unsteady(records: Sequence[Record]) -> tuple[str, ...]:
    """Return the settings that are not the same in all *records* of one case."""
    told = [settings(record) for record in records]
    keys = sorted({key for each in told for key in each})
    return tuple(key for key in keys if any(each.get(key) != told[0].get(key) for each in told))


def _flat(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, list(value) if isinstance(value, tuple) else value
