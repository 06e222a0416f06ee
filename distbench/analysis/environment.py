"""What two runs were made on, held against each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distbench.analysis.settings import text
from distbench.record import Record


def facts(data: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested facts as a flat table: ``packages.torch`` -> ``2.13.0``."""
    flat: dict[str, str] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat |= facts(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = text(value)
    return flat


def environment(records: Sequence[Record], machine: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return each fact of the ranks of a run with all its values; of the starting machine if no rank told."""
    seen: dict[str, dict[str, None]] = {}
    for each in [record.environment for record in records if record.environment] or [machine]:
        for key, value in facts(each).items():
            seen.setdefault(key, {})[value] = None
    return {key: tuple(values) for key, values in seen.items()}


def differences(
    before: dict[str, tuple[str, ...]], after: dict[str, tuple[str, ...]]
) -> dict[str, tuple[str, str]]:
    """Return the facts that are not the same in two runs, with what they were in each."""
    return {
        key: (_told(before, key), _told(after, key))
        for key in dict.fromkeys((*before, *after))
        if set(before.get(key, ())) != set(after.get(key, ()))
    }


def _told(of: dict[str, tuple[str, ...]], key: str) -> str:
    return " or ".join(of[key]) if key in of else "not told"
