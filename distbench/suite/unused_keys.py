"""Find keys of ``optimizer`` that no selected optimizer uses.

If several optimizers are selected, as in a sweep over ``optimizer.name``, it suffices that one of them uses
the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from distbench.core.case import OptimizerConfig
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

_OPTIMIZER_PATHS = {("optimizer",), *(("optimizer", key) for key in ("name", *HYPER_PARAMETER_KEYS))}


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
        Problem(place, _message(key, sorted(names)), value)
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


def _message(key: str, names: Sequence[str]) -> str:
    each = [f"{name} has no such option (it has {', '.join(CATALOG[name].setting_keys)})" for name in names]
    return f"{', '.join(each)}; remove it, or use one of: {', '.join(optimizers_with_key(key))}"
