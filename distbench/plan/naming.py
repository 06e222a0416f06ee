"""Names of cases: readable and unique."""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from distbench.case import Batch, Case, Precision
from distbench.plan.cells import Cell

# these are in every name
_ALWAYS = {("precision",), ("precision", "compute"), ("batch", "micro_batch_size")}


def base_name(cell: Cell, batch: Batch, precision: Precision) -> str:
    """``{label}/ws{n}/mb{micro}/{precision}`` plus ``/{key}={value}`` for anything else that varies."""
    label = cell.strategy.label
    parts = [label, f"ws{cell.world_size}", f"mb{batch.micro_batch_size}", precision.compute]
    varied = [path for path in cell.varied if path not in _ALWAYS]
    keys = _short_keys(varied)
    parts += [f"{keys[path]}={_text(_value(cell.work, path))}" for path in varied]
    return "/".join(parts)


def unique(cases: Sequence[Case]) -> list[Case]:
    """*cases* with differences added to names that are not unique."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        groups[case.name].append(index)
    named = list(cases)
    for indices in groups.values():
        if len(indices) > 1:
            flat = [_flat(cases[index]) for index in indices]
            every = dict.fromkeys(key for fields in flat for key in fields)
            differing = [key for key in every if len({json.dumps(fields.get(key)) for fields in flat}) > 1]
            keys = _short_keys([tuple(key.split(".")) for key in differing])
            for index, fields in zip(indices, flat, strict=True):
                extra = [
                    f"{keys[tuple(key.split('.'))]}={_text(fields[key])}"
                    for key in differing
                    if key in fields
                ]
                named[index] = dataclasses.replace(cases[index], name="/".join([cases[index].name, *extra]))
    return named


def _short_keys(paths: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Last part of each path, or the whole path if that is not unique."""
    lasts = [path[-1] for path in paths]
    return {path: path[-1] if lasts.count(path[-1]) == 1 else ".".join(path) for path in paths}


def _value(work: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        work = work[part]
    return work


def _text(value: object) -> str:
    if isinstance(value, dict) and len(value) == 1 and not any(value.values()):
        return str(next(iter(value)))
    text = value if isinstance(value, str) else json.dumps(value)
    # of a path to data or to a script only the last part: slashes separate the parts of a name
    return text.rstrip("/").rpartition("/")[2].replace(" ", "").replace('"', "")


def _flat(case: Case) -> dict[str, Any]:
    flat: dict[str, Any] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                add(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat[prefix] = value

    work = case.to_json()
    add("", {key: work[key] for key in work if key not in ("name", "label", "world_size", "device")})
    return flat
