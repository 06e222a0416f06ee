"""The option ``mesh`` of strategies.

Dimensions of size 1 are dropped, so every strategy accepts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from distbench.core import registry
from distbench.core.meshes import MESH_DIMENSIONS
from distbench.core.suite_mistakes import Problem
from distbench.suite.sections import mapping_keys

MESH_OPTION = "mesh"


def drop_size_one(cls: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Drop dimensions of size 1 from *options* that the strategy *cls* does not have."""
    mesh = options.get(MESH_OPTION)
    if not isinstance(mesh, dict):
        return dict(options)
    foreign = foreign_dimensions(mapping_keys(cls, MESH_OPTION))
    kept = {name: size for name, size in mesh.items() if not (name in foreign and _is_one(size))}
    return {**options, MESH_OPTION: kept}


def foreign_dimensions(names: Sequence[str]) -> list[str]:
    """Known dimensions besides *names*; empty: a strategy whose mesh may have any name."""
    return [name for name in MESH_DIMENSIONS if name not in names] if names else []


def name_supporting_strategies(problem: Problem, cls: type) -> Problem:
    """Extend *problem* in the options of *cls* with suggestions.

    If *cls* lacks a dimension of the mesh, the strategies that have it are named.
    """
    *_, option, name = ("", *problem.path)
    if option != MESH_OPTION or name not in foreign_dimensions(mapping_keys(cls, MESH_OPTION)):
        return problem
    strategies = registry.built_in_plugins("strategies")
    owners = sorted(each for each, cls in strategies.items() if name in mapping_keys(cls, MESH_OPTION))
    return replace(problem, message=f"{problem.message}; strategies that have {name}: {', '.join(owners)}")


def _is_one(size: object) -> bool:
    return size == 1 and not isinstance(size, bool)
