"""Names of cases, readable and unique, and globs on them."""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from distbench.core.case import CURRENT_ENVIRONMENT, Batch, Case, PrecisionConfig
from distbench.core.dtypes import Dtype, Float8Recipe
from distbench.core.errors import SuiteError
from distbench.core.grouping import group_by
from distbench.core.text import shorten
from distbench.plan.cells import SuiteCell
from distbench.suite import Suite
from distbench.suite.gate import matches_case
from distbench.suite.variables import ENV_KEY

# these are in every name
_IN_EVERY_NAME = {
    ("precision",),
    *(("precision", part) for part in ("compute", "matmul", "float8", "float8_emulated")),
    ("batch", "micro_batch_size"),
}
# suffix of cases that run in another environment
_AS_SUFFIX = {("environment",)}
# sizes in names and in globs on them, such as ws2, mb16*, ws[24]
_SIZE = re.compile(r"(?<![a-z])(ws|mb)[\d?!\[\]-]+")
# position of the precision among the parts of a name
_PRECISION = 3
_SHOWN = 8
_MAX_VALUE_LENGTH = 80


def case_name(cell: SuiteCell, batch: Batch, precision: PrecisionConfig) -> str:
    """``{label}/ws{n}/mb{micro}/{precision}`` plus ``/{key}={value}`` for anything else that varies."""
    label = cell.strategy.label
    parts = [label, f"ws{cell.world_size}", f"mb{batch.micro_batch_size}", precision.label]
    varied = [path for path in cell.varied_paths if path not in _IN_EVERY_NAME | _AS_SUFFIX]
    keys = _short_keys(varied)
    for path in varied:
        value = functools.reduce(operator.getitem, path, cell.work)
        # each variable of a whole section by its own name
        several = value if path == (ENV_KEY,) and value else {keys[path]: value}
        parts += [f"{key}={_value_text(each)}" for key, each in several.items()]
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
    return shorten(text.rstrip("/").rpartition("/")[2].replace(" ", "").replace('"', ""), _MAX_VALUE_LENGTH)


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


def check_only_globs(suite: Suite, cases: Sequence[Case]) -> None:
    """Refuse globs of ``only`` that match no case.

    Raises:
        SuiteError: there are such globs; all of them.
    """
    wrong = [
        suite.source_map.mistake(("only", i), _no_match_message(glob, cases), glob)
        for i, glob in enumerate(suite.only)
        if not any(case.matches(glob) for case in cases)
    ]
    if wrong:
        raise SuiteError(wrong)


def check_gate_globs(suite: Suite, cases: Sequence[Case]) -> None:
    """Refuse globs of the gate that match no case: their tolerances would silently apply to none.

    They may match cases in sizes and precisions that are missing here: another machine has them.

    Raises:
        SuiteError: there are such globs; all of them.
    """
    wrong = [
        suite.source_map.mistake(("gate", "strategies", glob), _no_match_message(glob, cases), glob)
        for glob in suite.gate.strategies
        if not any(matches_case(glob, case.label, case.name) for case in cases)
        and not _matches_variant(glob, cases)
    ]
    if wrong:
        raise SuiteError(wrong)


def _matches_variant(glob: str, cases: Sequence[Case]) -> bool:
    """True if *glob* matches one of *cases* in another size or precision."""
    sizeless = _without_sizes(glob)
    return any(matches_case(sizeless, case.label, name) for case in cases for name in _name_variants(case))


def _name_variants(case: Case) -> Iterator[str]:
    """The name of *case* without its sizes, in every precision."""
    parts = _without_sizes(case.name).split("/")
    for label in _all_precision_labels():
        yield "/".join([*parts[:_PRECISION], label, *parts[_PRECISION + 1 :]])


def _without_sizes(text: str) -> str:
    return _SIZE.sub(r"\g<1>0", text)


def _all_precision_labels() -> list[str]:
    """Labels of all precisions that a case can have."""
    emulated = [
        PrecisionConfig(float8=recipe, float8_emulated=is_emulated).label
        for recipe in get_args(Float8Recipe)
        if recipe != "none"
        for is_emulated in (False, True)
    ]
    return [*get_args(Dtype), PrecisionConfig(matmul="high").label, *emulated]


def _no_match_message(glob: str, cases: Sequence[Case]) -> str:
    """Describe that *glob* matches no case, and list existing names: those of its label, if that exists."""
    head, slash, _ = glob.partition("/")
    of_label = [case.name for case in cases if slash and case.matches(head)]
    if not of_label:
        return f"matches no case; labels: {', '.join(sorted({case.label for case in cases}))}"
    names = list(dict.fromkeys(of_label))
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"matches no case; cases of {head}: {', '.join(names[:_SHOWN])}{more}"
