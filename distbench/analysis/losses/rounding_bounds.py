"""Bound the loss difference that rounding explains at each step.

Two orders of summation differ by some ulps in the first loss. Training may amplify that exponentially, at a
rate that depends on model, data and learning rate; only perturbing the training shows it, as the equivalence
check does. So the limits are those of sane learning rates: sensitive in the steps that are timed by default,
insensitive after some dozens. They are fractions of the largest loss so far: a loss near zero has no better
resolution than at the start. A case beyond the limits makes a run, or a gate, perturb the training
(``jobs.sensitivity``): at a rate that is high for the model, the observed spread explains more.

There are two sets of limits, for two comparisons:

- ``BETWEEN_STRATEGIES``: trials of different strategies, one by one. Ranks round the numbers that they send
  each other and a single process does not, so the dtypes of reduction and of the states count as well.
- ``BETWEEN_ARMS``: one strategy before and after a change of the code, in means over trials. Both arms round
  the numbers that they send and keep alike, so only the dtype of multiplication counts.

Each was calibrated with honest trainings of its own kind (docs/equivalence.md, docs/gate.md). Using the
tighter of both in each dtype would reject honest trainings: of those of a decoder of six layers 5% in fp32 at
AdamW's rate of 0.01, and 20% in bf16 at 0.003. The looser one would detect fewer mistakes.
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
# a loss in this dtype is rounded by half of this, and so is the loss it is compared with
_RESOLUTION = {"fp64": 2.0**-52, "fp32": 2.0**-20, "fp16": 2.0**-10, "bf16": 2.0**-7}
_HALF_PRECISION = ("fp16", "bf16")
OBSERVED_SPREAD_FACTOR = 4.0
"""Maximum deviation of honest trainings, as a multiple of the observed deviation by rounding. For a decoder
at a rate that is too high for it, the largest multiple was 2.4 (docs/equivalence.md)."""
INSENSITIVE_LIMIT = 0.01
"""Limits above this fraction of the largest loss so far are insensitive: a deviation within them proves
little. The mistakes planted in the tests change the loss by 0.5% and more."""


@dataclass(frozen=True)
class RoundingBound:
    """Limit of the deviation of two honest trainings, as a fraction of the largest loss so far."""

    bounds: Mapping[str, tuple[float, float]]
    """Dtype, or tf32 -> limit of the first loss, and its growth factor per step."""
    max_limit: float = math.inf
    """Upper bound of the limit of any step."""

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
    # twice that of honest trainings that have diverged completely
    max_limit=0.1,
)


def loss_limits(losses: np.ndarray, steps: np.ndarray, record: Record) -> np.ndarray:
    """Deviation from *losses* of a different strategy that rounding explains at each of *steps* (steps,).

    In the unit of the loss, like *losses*; *record* is that of a trial that is compared with them.
    """
    dtype = coarsest_dtype([record], include_updates=True)
    largest = np.fmax.accumulate(np.abs(losses))
    return add_loss_resolution(BETWEEN_STRATEGIES.limits(dtype, steps) * largest, losses, [record])


def add_loss_resolution(limits: np.ndarray, losses: np.ndarray, records: Iterable[Record]) -> np.ndarray:
    """Raise *limits* of the deviation of *losses* (steps,) to the resolution of the losses in *records*.

    A loss in 16 bits is rounded after everything that training does, so its resolution is added. The limits
    include the rounding of longer dtypes already, unless the training uses still longer ones.
    """
    dtypes = {str(record.environment.get(LOSS_DTYPE_KEY)) for record in records}
    dtype = max(
        (dtype for dtype in dtypes if dtype in _RESOLUTION), key=_DTYPES_BY_RESOLUTION.index, default="fp32"
    )
    finest = _RESOLUTION[dtype] * np.abs(losses)
    return np.asarray(limits + finest if dtype in _HALF_PRECISION else np.maximum(limits, finest))


def coarsest_dtype(records: Iterable[Record], *, include_updates: bool) -> str:
    """Coarsest dtype in which any of *records* multiplies or, with *include_updates*, updates."""
    found: set[str] = set()
    for record in records:
        precision, facts = record.case.precision, record.environment
        found.add("float8" if precision.float8 != "none" else precision.compute)
        if include_updates:
            found |= {precision.reduce, precision.master, precision.optimizer_state}
            known = optimizers.CATALOG.get(record.case.optimizer.name)
            found |= {known.compute_dtype if known else ""} - {""}
        # fp32 matrices may be multiplied with fewer bits
        if facts.get("tf32") or facts.get("matmul_precision") in ("high", "medium"):
            found.add("tf32")
    return max(found, key=_DTYPES_BY_RESOLUTION.index)
