"""Checks across sections: environments that cases choose, and keys of optimizers that none reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from distbench.core.case import CURRENT_ENVIRONMENT, OptimizerConfig
from distbench.core.errors import did_you_mean
from distbench.core.suite_mistakes import KeyPath, Problem
from distbench.optimizers import CATALOG, HYPER_PARAMETER_KEYS, optimizers_with_key
from distbench.suite.cells import (
    CaseFilter,
    SuiteAxis,
    ValueOrigins,
    combinations,
    effective_axes,
    move_to_origin,
)
from distbench.suite.work import RawMapping

ENVIRONMENTS_KEY = "environments"
"""Section that names other Python environments."""
_CASE_FIELD = "environment"
"""Field of a case that has one of these names."""

_ENVIRONMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_OPTIMIZER_PATHS = {("optimizer",), *(("optimizer", key) for key in ("name", *HYPER_PARAMETER_KEYS))}


def parse_environments(given: Mapping[str, Any], file: str) -> tuple[dict[str, str], list[Problem]]:
    """Parse environments to name -> path, and return mistakes.

    Relative paths start from the folder of the suite's *file*.
    """
    wrong = [
        Problem((ENVIRONMENTS_KEY, name), why, path)
        for name, path in given.items()
        if (why := _environment_problem(name, path))
    ]
    mistaken = {finding.path[1] for finding in wrong}
    here = Path(file).absolute().parent if file else Path.cwd()
    return {name: str(here / path) for name, path in given.items() if name not in mistaken}, wrong


def _environment_problem(name: str, path: object) -> str | None:
    if name == CURRENT_ENVIRONMENT:
        return f"{CURRENT_ENVIRONMENT} is the name of distbench's own environment; choose another name"
    if not _ENVIRONMENT_NAME.fullmatch(name):
        return (
            "use letters, digits, dots, dashes and underscores, because the name becomes part of case names"
        )
    if not isinstance(path, str) or not path.strip():
        return "expected the path of a virtual environment or of its python, relative to the suite file"
    return None


def unknown_environments(
    known: Mapping[str, Any], work: RawMapping, axes: Sequence[SuiteAxis], parts: Sequence[CaseFilter]
) -> list[Problem]:
    """Problems of ``environment`` values that name no environment, each at its place."""
    names = [CURRENT_ENVIRONMENT, *known]
    return [
        Problem(place, f"unknown; {_unknown_environment_advice(str(value), names)}", value)
        for place, value in _environment_values(work, axes, parts)
        if isinstance(value, str) and value not in names
    ]


def _unknown_environment_advice(value: str, names: Sequence[str]) -> str:
    if len(names) > 1:
        return did_you_mean(value, names)
    missing = f"environments: {{{value}: path of a virtual environment}}"
    return f"the suite defines no environment other than {CURRENT_ENVIRONMENT}; use that, or add {missing}"


def _environment_values(
    work: RawMapping, axes: Sequence[SuiteAxis], parts: Sequence[CaseFilter]
) -> Iterator[tuple[KeyPath, Any]]:
    if _CASE_FIELD in work:
        yield (_CASE_FIELD,), work[_CASE_FIELD]
    for axis in (*axes, *(axis for part in parts for axis in part.axes)):
        if axis.path == (_CASE_FIELD,):
            yield from zip(axis.origins, axis.values, strict=True)


def unused_optimizer_keys(
    work: RawMapping, axes: Sequence[SuiteAxis], include: Sequence[CaseFilter]
) -> list[Problem]:
    """Report optimizer keys that are unused in checked *work*, its *axes* and each *include*."""
    standing: dict[KeyPath, tuple[str, Any, set[str]]] = {}
    for section, origins in _optimizer_sections(work, axes, include):
        for key in (key for key in HYPER_PARAMETER_KEYS if key in section):
            place = move_to_origin(Problem(("optimizer", key), ""), origins).path
            _, _, names = standing.setdefault(place, (key, section[key], set()))
            names.add(section.get("name", OptimizerConfig.name))
    return [
        Problem(place, _unused_key_message(key, sorted(names)), value)
        for place, (key, value, names) in standing.items()
        if names.isdisjoint(optimizers_with_key(key))
    ]


def _optimizer_sections(
    work: RawMapping, axes: Sequence[SuiteAxis], include: Sequence[CaseFilter]
) -> Iterator[tuple[RawMapping, ValueOrigins]]:
    """Yield each ``optimizer`` that a case may have, and the places of values that come from elsewhere."""
    for block in (axes, *(effective_axes(part, axes) for part in include)):
        for chosen, origins in combinations(work, [axis for axis in block if axis.path in _OPTIMIZER_PATHS]):
            yield chosen.get("optimizer", {}), origins


def _unused_key_message(key: str, names: Sequence[str]) -> str:
    each = [f"{name} has no such option (it has {', '.join(CATALOG[name].setting_keys)})" for name in names]
    return f"{', '.join(each)}; remove it, or use one of: {', '.join(optimizers_with_key(key))}"
