"""Whether both arms made the same training: their losses of each step, at the same seed on the same batches.

Checks of a strategy against its reference can't see a change of the model itself, which is in both of them.
Here the candidate is held against the baseline: at the same step, both have seen the same batches from the
same initial weights, so their losses differ only by rounding. How much that may be is taken from two sources:

- The dtypes in which both multiply and give their losses (``analysis.tolerance``).
- The trials. Kernels that are not deterministic make trials of one arm differ from each other. What their
  spread explains of the difference of two means (Welch 1947) is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distbench.analysis.losses import losses_of
from distbench.analysis.quantiles import t_quantile
from distbench.analysis.tolerance import BETWEEN_ARMS, coarsest, resolved
from distbench.gate.pairs import Pairs
from distbench.gate.verdicts import Finding
from distbench.record import Record
from distbench.suite.gate import Demand

CHANCE = 1e-3
"""Chance that the spread of trials alone makes any step of an equal training look different."""


@dataclass(frozen=True)
class Apart:
    """The first step at which the losses of two arms differ by more than rounding explains."""

    step: int
    """From 1 on, warm-up included."""
    before: float
    """Mean loss over the baseline's trials."""
    after: float
    distance: float
    """Difference of the two, as a fraction of the largest loss so far."""
    explained: float
    """Largest distance that rounding and the spread of trials explain."""


def findings(pairs: Pairs, demand: Demand) -> list[Finding]:
    """Finding on the losses of *pairs*, unless both arms made the same training."""
    if not pairs:
        return []
    before, after = (_losses([pair[side] for pair in pairs]) for side in (0, 1))
    if before is None:
        why = "the losses of the arms were not compared: neither reports any"
        return [Finding("trial", "pass", why, notable=demand == "required")]
    if after is None:
        why = "the baseline reports its losses, the candidate doesn't, so it may be another training"
        return [Finding("trial", "missing" if demand == "required" else "pass", why, notable=True)]
    records = [record for pair in pairs for record in pair]
    apart = first_apart(before, after, coarsest(records, of_updates=False), records)
    return [_finding(apart, demand, len(pairs))] if apart else []


def first_apart(
    before: np.ndarray, after: np.ndarray, dtype: str, records: Sequence[Record] = ()
) -> Apart | None:
    """First step at which *before* and *after* differ; None if they never do.

    Args:
        before: Losses of the baseline's trials, (trials, steps).
        after: Those of the candidate's.
        dtype: Coarsest compute dtype: a key of ``case.BYTES``, or tf32.
        records: The trials, which say in which dtype the model gave its losses; by default in fp32.
    """
    steps = min(before.shape[1], after.shape[1])
    before, after = before[:, :steps], after[:, :steps]
    means = before.mean(axis=0), after.mean(axis=0)
    # a loss that has come close to 0 is no less a sum of terms of its former size
    scales = np.maximum.accumulate(np.maximum(*map(np.abs, means)))
    differences = np.abs(means[1] - means[0])
    explained = _by_spread(before, after)
    of_training = BETWEEN_ARMS.at(dtype, np.arange(steps)) * scales
    rounding = resolved(of_training, np.maximum(*map(np.abs, means)), records)
    for step in np.flatnonzero(differences > explained):
        limit = (rounding[step] + explained[step]) / scales[step]
        distance = differences[step] / scales[step]
        if not distance <= limit:
            return Apart(int(step) + 1, float(means[0][step]), float(means[1][step]), distance, limit)
    return None


def _by_spread(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Half of the interval of the difference of two means, by step; 0 where an arm has a single trial."""
    if min(len(before), len(after)) < 2:
        return np.zeros(before.shape[1])
    variances = [losses.var(axis=0, ddof=1) / len(losses) for losses in (before, after)]
    # the fewer degrees of freedom of the two, which is the safe side of Welch's
    freedom = min(len(before), len(after)) - 1
    quantile = t_quantile(1 - CHANCE / 2 / before.shape[1], freedom)
    explained: np.ndarray = quantile * np.sqrt(variances[0] + variances[1])
    return explained


def _losses(records: Sequence[Record]) -> np.ndarray | None:
    """Loss of each step, mean over ranks, warm-up first: (trials, steps); None if no trial reports any."""
    trials = [losses for record in records if len(losses := _of_trial(record))]
    if not trials:
        return None
    steps = min(map(len, trials))
    return np.array([losses[:steps] for losses in trials])


def _of_trial(record: Record) -> np.ndarray:
    """Its losses up to the first that is not known; those of the warm-up if no metric keeps the others."""
    losses = np.array(losses_of(record), dtype=np.float64)
    return losses[np.logical_and.accumulate(np.isfinite(losses))]


def _finding(apart: Apart, demand: Demand, pairs: int) -> Finding:
    where = {
        1: "before any update, so the forward pass, the initial weights or the data differ",
        2: "after one update, so the gradients or the optimizer differ",
    }.get(apart.step, "")
    why = (
        f"another training: at step {apart.step} the loss is {apart.after:.6g}, was {apart.before:.6g} on "
        f"the same seed and batches{f' ({where})' if where else ''}: {_percent(apart.distance)} apart, and "
        f"rounding explains {_percent(apart.explained)}"
    )
    if demand == "ignored":
        return Finding("trial", "pass", f"{why}; ignored by gate.loss", pairs=pairs, notable=True)
    advice = "its speed and memory are not those of the same work; if that is meant, set gate.loss: ignored"
    return Finding("trial", "invalid", f"{why}; {advice}", pairs=pairs)


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.2g}%" if fraction < 10 else f"{fraction * 100:.0e}%"
