"""Check by their losses that both arms train alike, at the same seed on the same batches.

Checks of a strategy against its reference can't see a change of the model itself, which is in both of them.
Here the candidate is compared with the baseline: at the same step, both have seen the same batches from the
same initial weights, so their losses differ only by rounding. The size of that difference is bounded by

- The dtypes in which both multiply and give their losses (``analysis.losses.rounding_bounds``).
- The trials. Kernels that are not deterministic make trials of one arm differ from each other. The part of
  the difference of two means that their spread explains (Welch 1947) is added.
- The baseline's trainings from weights that were perturbed by rounding, where the losses differ by more than
  rounding in one step: training amplifies it, how much is a property of model and learning rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distbench.analysis.losses.case_losses import CaseLosses, mean_losses
from distbench.analysis.losses.rounding_bounds import coarsest_dtype
from distbench.gate.loss_divergence import LossDivergence, LossGap, loss_divergence
from distbench.gate.pairs import RecordPairs
from distbench.gate.verdicts import MetricFinding
from distbench.record import Record
from distbench.suite.gate import VerdictDemand

_EARLY_CAUSES = {
    1: " (before any update, so the forward pass, the initial weights or the data differ)",
    2: " (after one update, so the gradients or the optimizer differ)",
}


def needs_rounding_trials(pairs: RecordPairs, demand: VerdictDemand) -> bool:
    """True if the losses of *pairs* diverge so far that rounding trials must decide."""
    found = None if demand == "ignored" or not pairs else _divergence(pairs)
    return found is not None and found.first_doubtful is not None


def loss_findings(
    pairs: RecordPairs, demand: VerdictDemand, perturbed: Sequence[np.ndarray] = ()
) -> list[MetricFinding]:
    """Finding on the losses of *pairs*; empty if both arms train alike.

    *perturbed* are losses (steps,) of the baseline's trainings from perturbed weights.
    """
    if not pairs:
        return []
    found = _divergence(pairs, perturbed)
    if found is None:
        return _without_losses(pairs, demand)
    if gap := found.first_unexplained:
        return [_different_training(gap, demand, len(pairs))]
    if gap := found.first_undecidable:
        return [_undecided(gap, demand, len(pairs))]
    if gap := found.first_unexpected:
        why = (
            f"{_difference_text(gap)}, and rounding of the baseline's initial weights has as large an effect"
        )
        return [MetricFinding("trial", "pass", why, pairs=len(pairs), notable=True)]
    return []


def _divergence(pairs: RecordPairs, perturbed: Sequence[np.ndarray] = ()) -> LossDivergence | None:
    """Divergence of the losses of *pairs*; None if an arm reports none."""
    baseline, candidate = ([pair[side] for pair in pairs] for side in (0, 1))
    before, after = _losses(baseline), _losses(candidate)
    if before is None or after is None:
        return None
    records = [*baseline, *candidate]
    return loss_divergence(
        before,
        after,
        coarsest_dtype(records, include_updates=False),
        records,
        CaseLosses(baseline, perturbed).observed_spread,
    )


def _without_losses(pairs: RecordPairs, demand: VerdictDemand) -> list[MetricFinding]:
    if _losses([before for before, _ in pairs]) is None:
        why = "the losses of the arms were not compared: neither reports any"
        return [MetricFinding("trial", "pass", why, notable=demand == "required")]
    why = "the baseline reports its losses, the candidate doesn't, so it may train differently"
    return [MetricFinding("trial", "missing" if demand == "required" else "pass", why, notable=True)]


def _losses(records: Sequence[Record]) -> np.ndarray | None:
    """Loss of each step, mean over ranks, warm-up first: (trials, steps); None if no trial reports any."""
    trials = [losses for record in records if len(losses := _trial_losses(record))]
    if not trials:
        return None
    steps = min(map(len, trials))
    return np.array([losses[:steps] for losses in trials])


def _trial_losses(record: Record) -> np.ndarray:
    """Its losses up to the first unknown one; those of the warm-up if no metric keeps the others."""
    losses = np.array(mean_losses(record), dtype=np.float64)
    return losses[np.logical_and.accumulate(np.isfinite(losses))]


def _difference_text(gap: LossGap) -> str:
    return (
        f"at step {gap.step} the loss is {gap.after:.6g}, was {gap.before:.6g} with the same seed "
        f"and batches{_EARLY_CAUSES.get(gap.step, '')}: {_percent(gap.difference)} apart"
    )


def _different_training(gap: LossGap, demand: VerdictDemand, pairs: int) -> MetricFinding:
    explained = _percent(gap.explained_difference)
    why = f"trains differently: {_difference_text(gap)}, and rounding explains {explained}"
    if demand == "ignored":
        return _ignored_finding(why, pairs)
    advice = (
        "its speed and memory are not those of the same work. If the difference is intended, set "
        "gate.loss: ignored"
    )
    return MetricFinding("trial", "invalid", f"{why}; {advice}", pairs=pairs)


def _undecided(gap: LossGap, demand: VerdictDemand, pairs: int) -> MetricFinding:
    limit = (
        f"up to {_percent(gap.explained_difference)} apart"
        if np.isfinite(gap.explained_difference)
        else "anywhere"
    )
    why = (
        f"the losses can't show whether the training is the same: {_difference_text(gap)}. This "
        "training amplifies rounding: perturbing the baseline's initial weights by rounding moves its "
        f"losses {limit}, so an error can't be distinguished from rounding"
    )
    if demand == "ignored":
        return _ignored_finding(why, pairs)
    advice = "use a lower learning rate or fewer steps (measure.steps), or set gate.loss: ignored"
    return MetricFinding("trial", "inconclusive", f"{why}; {advice}", pairs=pairs)


def _ignored_finding(why: str, pairs: int) -> MetricFinding:
    return MetricFinding("trial", "pass", f"{why}; ignored by gate.loss", pairs=pairs, notable=True)


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.2g}%" if fraction < 10 else f"{fraction * 100:.0e}%"
