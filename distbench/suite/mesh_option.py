"""The option ``mesh`` of strategies: a dimension of one rank is none, so any strategy takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from distbench.core import registry
from distbench.core.meshes import NAMES
from distbench.core.suite_mistakes import SuiteMistake
from distbench.suite.sections import keys_of

OPTION = "mesh"


def without_ones(cls: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """*options* of the strategy *cls* without dimensions of one rank that it does not have."""
    mesh = options.get(OPTION)
    if not isinstance(mesh, dict):
        return dict(options)
    foreign = others(keys_of(cls, OPTION))
    kept = {name: size for name, size in mesh.items() if not (name in foreign and _is_one(size))}
    return {**options, OPTION: kept}


def others(names: Sequence[str]) -> list[str]:
    """The known dimensions besides *names*; empty: a strategy whose mesh may have any name."""
    return [name for name in NAMES if name not in names] if names else []


def with_owners(finding: SuiteMistake, cls: type) -> SuiteMistake:
    """*finding* in the options of *cls*; of a dimension that it does not have, with those that do."""
    *_, option, name = ("", *finding.path)
    if option != OPTION or name not in others(keys_of(cls, OPTION)):
        return finding
    strategies = registry.built_in("strategies")
    owners = sorted(each for each, cls in strategies.items() if name in keys_of(cls, OPTION))
    return replace(finding, message=f"{finding.message}; strategies that have {name}: {', '.join(owners)}")


def _is_one(size: object) -> bool:
    return size == 1 and not isinstance(size, bool)
