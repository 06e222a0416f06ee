"""How far rounding alone may drive the losses of two trainings of the same work apart, step by step.

Two orders of summation differ by some ulps in the first loss, and training amplifies that, if at all,
exponentially. How fast depends on model, data and learning rate, which nobody knows without having perturbed
the training, as the equivalence check does. So the limits are those of sane learning rates, sharp in the
steps that are timed by default and blunt after some dozens. They are fractions of the largest loss so
far: one that nears zero has no better resolution than it began with. A case beyond them makes a run, or a
gate, perturb the training (``jobs.sensitivity``): at a rate that is high for the model, what is seen there
explains more.

There are two, for two comparisons:

- ``BETWEEN_STRATEGIES``: trials of different strategies, one by one. One process rounds nothing where two
  round what they send each other, so the dtypes of reduction and of the states count as well.
- ``BETWEEN_ARMS``: one strategy before and after a change of the code, in means over trials. Both arms round
  alike what they send and keep, so the dtype in which they multiply counts alone.

Each was set by honest trainings of its own kind (docs/equivalence.md, docs/gate.md). The tighter of both in
each dtype would take honest trainings for others that one of them lets pass: of those of a decoder of six
layers 5% in fp32 at AdamW's rate of 0.01, and 20% in bf16 at 0.003. The looser would see fewer mistakes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from distbench import optimizers
from distbench.ipc.trial_files import LOSS_DTYPE_KEY
from distbench.record import Record

_DTYPES_BY_RESOLUTION = ("fp64", "fp32", "tf32", "fp16", "bf16", "float8")
# a loss that is itself a number of so many bits is rounded by half of this, and so is the one beside it
_RESOLUTION = {"fp64": 2.0**-52, "fp32": 2.0**-20, "fp16": 2.0**-10, "bf16": 2.0**-7}
_HALF_PRECISION = ("fp16", "bf16")
OBSERVED_SPREAD_FACTOR = 4.0
"""Times as far as rounding was seen to lead a training, honest ones may part from it. Those of a decoder at a
rate that is too high for it came to 2.4 times at most (docs/equivalence.md)."""
INSENSITIVE_LIMIT = 0.01
"""Fraction of the largest loss so far: where more than that may be rounding, being within it says little. The
mistakes that are planted in the tests change the loss by 0.5% and more."""


@dataclass(frozen=True)
class RoundingBound:
    """Limit of the deviation of two honest trainings, as a fraction of the largest loss so far."""

    bounds: Mapping[str, tuple[float, float]]
    """Dtype, or tf32 -> limit of the first loss, and its growth from step to step."""
    max_limit: float = math.inf
    """Largest limit of any step."""

    def limits(self, dtype: str, steps: np.ndarray) -> np.ndarray:
        """Limit at each of *steps*, from 0 on (steps,)."""
        first, growth = self.bounds[dtype]
        with np.errstate(over="ignore"):
            return np.asarray(np.minimum(self.max_limit, first * growth**steps))


BETWEEN_STRATEGIES = RoundingBound(
    {
        "fp64": (1e-13, 2.0),
        "fp32": (4e-6, 2.0),
        "tf32": (2e-4, 1.5),
        "fp16": (5e-4, 1.4),
        "bf16": (1e-3, 1.3),
        "float8": (2e-3, 1.3),
    }
)
BETWEEN_ARMS = RoundingBound(
    {
        "fp64": (1e-12, 1.8),
        "fp32": (2e-6, 1.8),
        "tf32": (5e-4, 1.6),
        "fp16": (5e-4, 1.6),
        "bf16": (2e-3, 1.4),
        "float8": (4e-3, 1.4),
    },
    # twice that of honest trainings that have parted altogether
    max_limit=0.1,
)


def loss_limits(losses: np.ndarray, steps: np.ndarray, record: Record) -> np.ndarray:
    """Deviation from *losses* of another strategy that rounding explains at each of *steps* (steps,).

    In the unit of the loss, like *losses*; *record* is that of a trial that is held against them.
    """
    dtype = coarsest_dtype([record], include_updates=True)
    largest = np.fmax.accumulate(np.abs(losses))
    return add_loss_resolution(BETWEEN_STRATEGIES.limits(dtype, steps) * largest, losses, [record])


def add_loss_resolution(limits: np.ndarray, losses: np.ndarray, records: Iterable[Record]) -> np.ndarray:
    """*limits* of the deviation of *losses*, no finer than the numbers in which *records* have them (steps,).

    What a model computes in 16 bits is rounded after all that training does to it, so that is added. The
    rounding of longer numbers is in the limits already, unless the training is in still longer ones.
    """
    dtypes = {str(record.environment.get(LOSS_DTYPE_KEY)) for record in records}
    dtype = max(
        (dtype for dtype in dtypes if dtype in _RESOLUTION), key=_DTYPES_BY_RESOLUTION.index, default="fp32"
    )
    finest = _RESOLUTION[dtype] * np.abs(losses)
    return np.asarray(limits + finest if dtype in _HALF_PRECISION else np.maximum(limits, finest))


def coarsest_dtype(records: Iterable[Record], *, include_updates: bool) -> str:
    """The coarsest dtype in which any of *records* multiplies; with *include_updates* or updates."""
    found: set[str] = set()
    for record in records:
        precision, facts = record.case.precision, record.environment
        found.add("float8" if precision.float8 != "none" else precision.compute)
        if include_updates:
            found |= {precision.reduce, precision.master, precision.optimizer_state}
            found |= {optimizers.entry_of(record.case.optimizer).compute_dtype} - {""}
        # matrices of fp32 may be multiplied with fewer bits
        if facts.get("tf32") or facts.get("matmul_precision") in ("high", "medium"):
            found.add("tf32")
    return max(found, key=_DTYPES_BY_RESOLUTION.index)
