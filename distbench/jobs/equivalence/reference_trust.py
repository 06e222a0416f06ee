"""Check that a 16-bit reference agrees with a more exact one.

No case is blamed for a wrong reference.
"""

from __future__ import annotations

from distbench.core.text import one_line
from distbench.jobs.equivalence.envelope import EPSILON, RoundingEnvelope
from distbench.jobs.equivalence.values import Quantity, RecordedTraining

_FIRST_LOSS = Quantity(0, "loss")
# an error that all 16-bit trainings share, which their spread does not show, is of second order in the
# rounding of the dtype: far below this fraction of it
_SHARED_ERROR = 1 / 16


def reference_problem(
    envelope: RoundingEnvelope, compute: str, exact_name: str, exact: RecordedTraining, false_alarm: float
) -> str:
    """Reason why nothing can be compared with the reference of *envelope*; empty: there is none.

    It begins with the weights and rows of the training *exact*, so their first losses may differ only by
    rounding, and a tensor that has a gradient in one has one in the other.

    Args:
        envelope: Envelope of the reference.
        compute: Dtype of the reference's forward and backward pass; only 16-bit ones are checked.
        exact_name: Dtype of the most exact training of the same work.
        exact: That training.
        false_alarm: Probability that a correct reference is reported as wrong.
    """
    reference = envelope.reference
    if compute not in EPSILON or not exact.size(_FIRST_LOSS):
        return ""
    # in fp16 a small gradient underflows, which is rounding
    first = sorted(p for p in exact.values if p[:2] == (0, "gradient")) if compute == "bf16" else []
    for place in first:
        if _has_size(exact, place) and not _has_size(reference, place):
            name = one_line(place.tensor)
            return _text(f"{name} has a gradient in {exact_name} and none in {compute}", compute)
    size = exact.size(_FIRST_LOSS)
    difference = reference.distance(exact, _FIRST_LOSS) / size
    by_spread = envelope.limits(false_alarm)["loss"] * envelope.scale(_FIRST_LOSS) / size
    allowed = max(by_spread, _SHARED_ERROR * EPSILON[compute])
    if difference <= allowed:
        return ""
    losses = [f"{float(training.values[_FIRST_LOSS][0]):.6g}" for training in (reference, exact)]
    return _text(
        f"its first loss is {losses[0]} in {compute} and {losses[1]} in {exact_name}, a relative difference "
        f"of {difference:.1e}, of which rounding explains at most {allowed:.1e}",
        compute,
    )


def _text(why: str, compute: str) -> str:
    return f"its reference is broken: {why}; the model computes different results in {compute}"


def _has_size(training: RecordedTraining, place: Quantity) -> bool:
    # the size of NaN is NaN
    return place in training.values and training.size(place) != 0
