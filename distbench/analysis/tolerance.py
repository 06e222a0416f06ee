"""How far rounding alone may drive the losses of two trainings of the same work apart, step by step."""

from __future__ import annotations

import numpy as np

from distbench.record import Record
from distbench.trial import LOSS_DTYPE

_BOUNDS = {
    "fp64": (1e-13, 2.0),
    "fp32": (4e-6, 2.0),
    "tf32": (2e-4, 1.5),
    "fp16": (5e-4, 1.4),
    "bf16": (1e-3, 1.3),
}
"""Coarsest dtype of a case -> deviation of the first loss, relative to it, and its growth from step to step.

The first is ten times and more what honest engines showed, and the growth more than that of the most chaotic
honest training that was measured (docs/equivalence.md has both).
"""
# a loss that is itself a number of so many bits is rounded by half of this, and so is the one beside it
_RESOLUTION = {"fp64": 2.0**-52, "fp32": 2.0**-20, "fp16": 2.0**-10, "bf16": 2.0**-7}


def allowed(losses: np.ndarray, steps: np.ndarray, record: Record) -> np.ndarray:
    """Deviation from *losses* that rounding explains at each of *steps*, in the unit of the loss (steps,).

    Training amplifies a perturbation, if at all, exponentially; how fast depends on model, data and learning
    rate, which nobody knows without having perturbed it, as the equivalence check does. So the bound is that
    of the worst, ``first * growth ** step``: sharp in the steps that are timed by default, and blunt after
    some dozens. It is relative to the largest loss so far: one that nears zero has no better resolution than
    it began with.
    """
    first, growth = _BOUNDS[_coarsest(record)]
    largest = np.fmax.accumulate(np.abs(losses))
    with np.errstate(over="ignore"):
        bound = first * growth**steps * largest
    return np.asarray(np.maximum(bound, resolution(losses, record)))


def resolution(losses: np.ndarray, record: Record) -> np.ndarray:
    """Deviation of *losses* below the resolution of the numbers in which *record* has them (steps,)."""
    dtype = str(record.environment.get(LOSS_DTYPE, "fp32"))
    finest: np.ndarray = _RESOLUTION.get(dtype, _RESOLUTION["fp32"]) * np.abs(losses)
    return finest


def _coarsest(record: Record) -> str:
    """The coarsest dtype in which the case of *record* computes, reduces or updates."""
    precision = record.case.precision
    dtypes: set[str] = {precision.compute, precision.reduce, precision.master, precision.optimizer_state}
    if record.environment.get("tf32") or record.environment.get("matmul_precision", "highest") != "highest":
        dtypes.add("tf32")
    return max(dtypes, key=list(_BOUNDS).index)
