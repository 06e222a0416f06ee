"""Whether the work of a cell has the values that an ``exclude`` names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distbench import registry
from distbench.spec.batch import BatchSpec, Indivisible
from distbench.spec.checking import defaults
from distbench.spec.plugins import Named, with_defaults
from distbench.spec.work import PLUGIN_ROOTS, SECTION_ROOTS, Raw, with_loss_scale


def has_one_of(work: Raw, world_size: int, path: tuple[str, ...], values: Sequence[Any]) -> bool:
    """Return whether the field of *work* at *path* has one of *values*, given or by default."""
    root, *rest = path
    found = _facts(work, root, world_size)
    for key in rest:
        found = found.get(key) if isinstance(found, dict) else None
    return any(_is_same(root, rest, found, value) for value in values)


def _is_same(root: str, rest: list[str], found: Any, value: Any) -> bool:
    if rest or not isinstance(value, dict) or not isinstance(found, dict):
        return bool(found == value)
    if root in PLUGIN_ROOTS:
        ((name, options),) = value.items()
        return name in found and all(found[name].get(key) == option for key, option in options.items())
    return bool(found == _section(root, value))


def _facts(work: Raw, root: str, world_size: int) -> Any:
    """Return the value of *root* with its defaults, and the batch as it is cut up."""
    if root in PLUGIN_ROOTS:
        return _plugin(work, root)
    if root == "batch":
        return _section(root, work["batch"]) | _cut(work["batch"], world_size)
    return _section(root, work[root]) if root in SECTION_ROOTS else work[root]


def _section(root: str, raw: Raw) -> Raw:
    given = with_loss_scale(raw) if root == "precision" else raw
    return {**defaults(SECTION_ROOTS[root]), **given}


def _plugin(work: Raw, root: str) -> Raw:
    raw = work.get(root)
    if raw is None:
        ((workload, _),) = work["workload"].items()
        raw = {registry.load("workloads", workload).default_data: {}}
    ((name, options),) = raw.items()
    return with_defaults(Named(name, options), PLUGIN_ROOTS[root]).to_raw()


def _cut(raw: Raw, world_size: int) -> Raw:
    spec = BatchSpec(**raw)
    if spec.problems():
        return {}
    try:
        batch = spec.at(world_size)
    except Indivisible:
        return {}
    return {
        "global_batch_size": batch.global_batch_size,
        "per_device_batch_size": batch.global_batch_size // world_size,
        "micro_batch_size": batch.micro_batch_size,
        "gradient_accumulation_steps": batch.gradient_accumulation_steps,
    }
