"""Optimizers: classes, hyper-parameters, state bytes and limits.

One table is the source for the check of a suite, the optimizer that is built, the settings that are read back
from it, the theory of its states, the code that ``adopt`` writes, and the reason why a strategy can't use it.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from distbench.core.case import OptimizerConfig
from distbench.optimizers.kind import ALGORITHM_FLAGS, OptimizerEntry, ParameterShape, TensorLayout
from distbench.optimizers.table import CATALOG, ELEMENTWISE_RULES

__all__ = ["ALGORITHM_FLAGS", "CATALOG", "OptimizerEntry", "ParameterShape", "TensorLayout"]

HYPER_PARAMETER_KEYS = tuple(dict.fromkeys(key for kind in CATALOG.values() for key in kind.setting_keys))
"""Keys of ``optimizer`` that are hyper-parameters of some optimizer; the other keys apply to all."""


def entry_of(spec: OptimizerConfig) -> OptimizerEntry:
    """Catalog entry of the optimizer that *spec* names."""
    return CATALOG[spec.name]


def update_dtype(spec: OptimizerConfig) -> Literal["", "bf16"]:
    """Dtype in which the optimizer of *spec* multiplies in its update; empty: none of its own, or unknown."""
    kind = CATALOG.get(spec.name)
    return kind.compute_dtype if kind else ""


def default_settings(name: object) -> dict[str, Any]:
    """Defaults of the optimizer *name* that differ from those of the others."""
    kind = CATALOG.get(str(name))
    if kind is None:
        return {}
    kernel = {} if "fused" in kind.kernels else {"kernel": kind.kernels[0]}
    return {**kernel, **kind.own_defaults}


def state_bytes(spec: OptimizerConfig, weights: Sequence[ParameterShape], element: int) -> float:
    """Bytes of the optimizer state of *spec* for *weights*, if an element of a state has *element* bytes."""
    return sum(entry_of(spec).state_bytes(spec, weight, element) for weight in weights)


def bytes_per_parameter(spec: OptimizerConfig, element: int) -> float:
    """State bytes of *spec* per parameter at their lowest: in a large matrix of a layer."""
    large = ParameterShape((2**15, 2**15), is_layer_matrix=True)
    return state_bytes(spec, [large], element) / large.elements


def keeps_state(spec: OptimizerConfig) -> bool:
    """True if *spec* keeps state from step to step."""
    return state_bytes(spec, [ParameterShape((1,))], 1) > 0


def depends_on_shape(spec: OptimizerConfig) -> bool:
    """True if the state size of *spec* depends on more than the number of elements."""
    return entry_of(spec).state_bytes not in ELEMENTWISE_RULES


def layout_problem(spec: OptimizerConfig, layout: TensorLayout, strategy_name: str) -> str | None:
    """Reason why *spec* can't be used with *strategy_name*, whose tensors have *layout*; None if it can."""
    kind, whole = entry_of(spec), "a strategy with whole tensors (ddp, zero with stage: 0)"
    if layout == "rows" and kind.dtensor_problem:
        return f"optimizer.name = {spec.name}: {kind.dtensor_problem}; use {whole}"
    if layout != "flat" or not kind.needs_full_tensors:
        return None
    rows = "" if kind.dtensor_problem else ", fsdp with version: 2"
    return (
        f"optimizer.name = {spec.name} needs {kind.needs_full_tensors}, but {strategy_name} flattens "
        f"and splits tensors; use {whole}{rows}, or an element-wise optimizer "
        f"({', '.join(_elementwise())})"
    )


def _elementwise() -> list[str]:
    return [name for name, kind in CATALOG.items() if not kind.needs_full_tensors]


def optimizers_with_key(key: str) -> list[str]:
    """Optimizers of which *key* of ``optimizer`` is a hyper-parameter."""
    return [name for name, kind in CATALOG.items() if key in kind.setting_keys]


def setting_mistakes(spec: OptimizerConfig) -> list[tuple[str, str]]:
    """Keys of *spec* that its optimizer does not have, each with an error message."""
    kind, found = entry_of(spec), []
    if spec.momentum and "momentum" not in kind.setting_keys:
        having = " and ".join(optimizers_with_key("momentum"))
        verb = "have" if " and " in having else "has"
        found.append(("momentum", f"only {having} {verb} momentum, not {spec.name}"))
    if spec.kernel not in kind.kernels:
        allowed = ", ".join(kind.kernels)
        found.append(("kernel", f"{spec.name} has no {spec.kernel} kernel. Allowed: {allowed}"))
    return found
