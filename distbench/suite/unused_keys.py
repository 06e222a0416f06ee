"""Keys of ``optimizer`` that stand where no optimizer reads them.

One that stands for several, as in a sweep over ``optimizer.name``, is right if one of them reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from distbench.core.case import Optimizer
from distbench.core.suite_mistakes import KeyPath, SuiteMistake
from distbench.optimizers import KINDS, OWN_KEYS, readers
from distbench.suite.cells import Axis, Origins, Part, axes_of, located, selections
from distbench.suite.work import Raw

_PATHS = {("optimizer",), *(("optimizer", key) for key in ("name", *OWN_KEYS))}


def unread(work: Raw, axes: Sequence[Axis], include: Sequence[Part]) -> list[SuiteMistake]:
    """Keys of checked *work* with its *axes*, and of each *include*, that nobody reads where they stand."""
    standing: dict[KeyPath, tuple[str, Any, set[str]]] = {}
    for section, origins in _sections(work, axes, include):
        for key in (key for key in OWN_KEYS if key in section):
            place = located(SuiteMistake(("optimizer", key), ""), origins).path
            _, _, names = standing.setdefault(place, (key, section[key], set()))
            names.add(section.get("name", Optimizer.name))
    return [
        SuiteMistake(place, _message(key, sorted(names)), value)
        for place, (key, value, names) in standing.items()
        if names.isdisjoint(readers(key))
    ]


def _sections(work: Raw, axes: Sequence[Axis], include: Sequence[Part]) -> Iterator[tuple[Raw, Origins]]:
    """Yield each ``optimizer`` that a case may have, and the places of its values that are not its own."""
    for block in (axes, *(axes_of(part, axes) for part in include)):
        for chosen, origins in selections(work, [axis for axis in block if axis.path in _PATHS]):
            yield chosen.get("optimizer", {}), origins


def _message(key: str, names: Sequence[str]) -> str:
    each = [f"{name} does not read it (but {', '.join(KINDS[name].reads)})" for name in names]
    return f"{', '.join(each)}; remove it, or use an optimizer that does: {', '.join(readers(key))}"
