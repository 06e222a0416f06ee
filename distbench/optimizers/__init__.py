"""The optimizers: where each comes from, what it is given, what it keeps, and where it is right.

From this one table follow the check of a suite, the optimizer that is built, what is read back from the live
one, the theory of its states, the code that ``adopt`` writes, and the reason where a strategy would break it.
Without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distbench.core.case import OptimizerConfig
from distbench.optimizers.kind import ALGORITHM_FLAGS, OptimizerEntry, ParameterShape, TensorLayout
from distbench.optimizers.table import CATALOG, ELEMENTWISE_RULES

__all__ = ["ALGORITHM_FLAGS", "CATALOG", "OptimizerEntry", "ParameterShape", "TensorLayout"]

HYPER_PARAMETER_KEYS = tuple(dict.fromkeys(key for kind in CATALOG.values() for key in kind.setting_keys))
"""Keys of ``optimizer`` that are hyper-parameters of some optimizer; the others are everybody's."""


def entry_of(spec: OptimizerConfig) -> OptimizerEntry:
    """The optimizer that *spec* names."""
    return CATALOG[spec.name]


def default_settings(name: object) -> dict[str, Any]:
    """Defaults of the optimizer *name* that differ from those of the others."""
    kind = CATALOG.get(str(name))
    if kind is None:
        return {}
    kernel = {} if "fused" in kind.kernels else {"kernel": kind.kernels[0]}
    return {**kernel, **kind.own_defaults}


def state_bytes(spec: OptimizerConfig, weights: Sequence[ParameterShape], element: int) -> float:
    """Bytes of the states that *spec* keeps for *weights*, in states of *element* bytes a number."""
    return sum(entry_of(spec).state_bytes(spec, weight, element) for weight in weights)


def bytes_per_parameter(spec: OptimizerConfig, element: int) -> float:
    """Bytes that *spec* keeps for a parameter where it keeps least: in a large matrix of a layer."""
    large = ParameterShape((2**15, 2**15), is_layer_matrix=True)
    return state_bytes(spec, [large], element) / large.elements


def keeps_state(spec: OptimizerConfig) -> bool:
    """Whether *spec* keeps anything from step to step."""
    return state_bytes(spec, [ParameterShape((1,))], 1) > 0


def depends_on_shape(spec: OptimizerConfig) -> bool:
    """Whether what *spec* keeps depends on more than the number of elements."""
    return entry_of(spec).state_bytes not in ELEMENTWISE_RULES


def layout_problem(spec: OptimizerConfig, layout: TensorLayout, strategy_name: str) -> str | None:
    """Why *spec* is another optimizer under *strategy_name*, which cuts its tensors so; None if it isn't."""
    kind, whole = entry_of(spec), "a strategy with whole tensors (ddp, zero with stage: 0)"
    if layout == "rows" and kind.dtensor_problem:
        return f"optimizer.name = {spec.name}: {kind.dtensor_problem}; use {whole}"
    if layout != "flat" or not kind.needs_full_tensors:
        return None
    rows = "" if kind.dtensor_problem else ", fsdp with version: 2"
    return (
        f"optimizer.name = {spec.name} needs {kind.needs_full_tensors}, and {strategy_name} gives it flat "
        f"pieces of tensors; use {whole}{rows}, or an optimizer that treats each element by itself "
        f"({', '.join(_elementwise())})"
    )


def _elementwise() -> list[str]:
    return [name for name, kind in CATALOG.items() if not kind.needs_full_tensors]


def optimizers_with_key(key: str) -> list[str]:
    """Optimizers of which *key* of ``optimizer`` is a hyper-parameter."""
    return [name for name, kind in CATALOG.items() if key in kind.setting_keys]


def setting_mistakes(spec: OptimizerConfig) -> list[tuple[str, str]]:
    """Keys of *spec* that its optimizer does not have, each with what is wrong."""
    kind, found = entry_of(spec), []
    if spec.momentum and "momentum" not in kind.setting_keys:
        having = " and ".join(optimizers_with_key("momentum"))
        verb = "have" if " and " in having else "has"
        found.append(("momentum", f"only {having} {verb} momentum, not {spec.name}"))
    if spec.kernel not in kind.kernels:
        allowed = ", ".join(kind.kernels)
        found.append(("kernel", f"{spec.name} has no {spec.kernel} kernel. Allowed: {allowed}"))
    return found
