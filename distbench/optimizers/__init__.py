"""The optimizers: where each comes from, what it is given, what it keeps, and where it is right.

From this one table follow the check of a suite, the optimizer that is built, what is read back from the live
one, the theory of its states, the code that ``adopt`` writes, and the reason where a strategy would break it.
Without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distbench.core.case import Optimizer
from distbench.optimizers.kind import VARIANTS, Cut, Kind, Weight
from distbench.optimizers.table import KINDS, PER_ELEMENT

__all__ = ["KINDS", "VARIANTS", "Cut", "Kind", "Weight"]

OWN_KEYS = tuple(dict.fromkeys(key for kind in KINDS.values() for key in kind.reads))
"""Keys of ``optimizer`` that are hyper-parameters of some optimizer; the others are everybody's."""


def kind_of(spec: Optimizer) -> Kind:
    """The optimizer that *spec* names."""
    return KINDS[spec.name]


def usual(name: object) -> dict[str, Any]:
    """Defaults of the optimizer *name* that differ from those of the others."""
    kind = KINDS.get(str(name))
    if kind is None:
        return {}
    kernel = {} if "fused" in kind.kernels else {"kernel": kind.kernels[0]}
    return {**kernel, **kind.usual}


def state_bytes(spec: Optimizer, weights: Sequence[Weight], element: int) -> float:
    """Bytes of the states that *spec* keeps for *weights*, in states of *element* bytes a number."""
    return sum(kind_of(spec).state(spec, weight, element) for weight in weights)


def least_bytes(spec: Optimizer, element: int) -> float:
    """Bytes that *spec* keeps for a parameter where it keeps least: in a large matrix of a layer."""
    large = Weight((2**15, 2**15), is_hidden=True)
    return state_bytes(spec, [large], element) / large.elements


def keeps_state(spec: Optimizer) -> bool:
    """Whether *spec* keeps anything from step to step."""
    return state_bytes(spec, [Weight((1,))], 1) > 0


def is_by_shape(spec: Optimizer) -> bool:
    """Whether what *spec* keeps depends on more than the number of elements."""
    return kind_of(spec).state not in PER_ELEMENT


def problem(spec: Optimizer, cut: Cut, who: str) -> str | None:
    """Why *spec* would be another optimizer under *who*, which hands it tensors cut so; None if it isn't."""
    kind, whole = kind_of(spec), "a strategy with whole tensors (ddp, zero with stage: 0)"
    if cut == "rows" and kind.fails_on_rows:
        return f"optimizer.name = {spec.name}: {kind.fails_on_rows}; use {whole}"
    if cut != "flat" or not kind.needs:
        return None
    rows = "" if kind.fails_on_rows else ", fsdp with version: 2"
    return (
        f"optimizer.name = {spec.name} needs {kind.needs}, and {who} gives it flat pieces of tensors; use "
        f"{whole}{rows}, or an optimizer that treats each element by itself ({', '.join(_elementwise())})"
    )


def _elementwise() -> list[str]:
    return [name for name, kind in KINDS.items() if not kind.needs]


def readers(key: str) -> list[str]:
    """Optimizers of which *key* of ``optimizer`` is a hyper-parameter."""
    return [name for name, kind in KINDS.items() if key in kind.reads]


def mistakes(spec: Optimizer) -> list[tuple[str, str]]:
    """Keys of *spec* that its optimizer does not have, each with what is wrong."""
    kind, found = kind_of(spec), []
    if spec.momentum and "momentum" not in kind.reads:
        having = " and ".join(readers("momentum"))
        verb = "have" if " and " in having else "has"
        found.append(("momentum", f"only {having} {verb} momentum, not {spec.name}"))
    if spec.kernel not in kind.kernels:
        allowed = ", ".join(kind.kernels)
        found.append(("kernel", f"{spec.name} has no {spec.kernel} kernel. Allowed: {allowed}"))
    return found
