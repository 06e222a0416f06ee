"""Names of cases: readable and unique."""

import dataclasses
import functools
import json
import operator
from collections.abc import Sequence
from typing import Any

from distbench.core.case import CURRENT_ENVIRONMENT, Batch, Case, PrecisionConfig
from distbench.core.grouping import group_by
from distbench.plan.cells import SuiteCell

# these are in every name
_IN_EVERY_NAME = {
    ("precision",),
    *(("precision", part) for part in ("compute", "matmul", "float8", "float8_emulated")),
    ("batch", "micro_batch_size"),
}
# suffix of cases that run in another environment
_AS_SUFFIX = {("environment",)}


def case_name(cell: SuiteCell, batch: Batch, precision: PrecisionConfig) -> str:
    """``{label}/ws{n}/mb{micro}/{precision}`` plus ``/{key}={value}`` for anything else that varies."""
    label = cell.strategy.label
    parts = [label, f"ws{cell.world_size}", f"mb{batch.micro_batch_size}", precision.label]
    varied = [path for path in cell.varied_paths if path not in _IN_EVERY_NAME | _AS_SUFFIX]
    keys = _short_keys(varied)
    parts += [
        f"{keys[path]}={_value_text(functools.reduce(operator.getitem, path, cell.work))}" for path in varied
    ]
    return "/".join(parts)


def environment_suffix(environment: str) -> str:
    """Suffix of the names of cases in *environment*: ``/@old``; empty: in the current one."""
    return "" if environment == CURRENT_ENVIRONMENT else f"/@{environment}"


def make_names_unique(cases: Sequence[Case]) -> list[Case]:
    """Add differences to the names of *cases* that are not unique."""
    named: dict[str, Case] = {}
    for name, group in group_by(cases, lambda case: case.name).items():
        flat = [_flatten(_work(case)) for case in group] if len(group) > 1 else []
        every = dict.fromkeys(key for fields in flat for key in fields)
        differing = [key for key in every if len({json.dumps(fields.get(key)) for fields in flat}) > 1]
        keys = _short_keys([tuple(key.split(".")) for key in differing])
        for case, fields in zip(group, flat, strict=False):
            pairs = [(path, fields[".".join(path)]) for path in keys if ".".join(path) in fields]
            extra = [f"{keys[path]}={_value_text(value)}" for path, value in pairs]
            named[case.id] = dataclasses.replace(case, name="/".join([name, *extra]))
    return [named.get(case.id, case) for case in cases]


def _short_keys(paths: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Last part of each path, or the whole path if that is not unique."""
    lasts = [path[-1] for path in paths]
    return {path: path[-1] if lasts.count(path[-1]) == 1 else ".".join(path) for path in paths}


def _value_text(value: object) -> str:
    if isinstance(value, dict) and len(value) == 1 and not any(value.values()):
        return str(next(iter(value)))
    text = value if isinstance(value, str) else json.dumps(value)
    # of a path to data or to a script only the last part: slashes separate the parts of a name
    return text.rstrip("/").rpartition("/")[2].replace(" ", "").replace('"', "")


def _work(case: Case) -> dict[str, Any]:
    work = case.to_json()
    return {key: work[key] for key in work if key not in ("name", "label", "world_size", "device")}


def _flatten(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings of *value* to dotted paths."""
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= (
            _flatten(inner, f"{prefix}{key}.") if isinstance(inner, dict) and inner else {prefix + key: inner}
        )
    return flat
