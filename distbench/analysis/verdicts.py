"""Verdicts of equivalence in words."""

from __future__ import annotations

from distbench.analysis.equivalence import DIFFERS, NOT_CHECKED, ROUNDING, Arm, Verdict, Worst
from distbench.analysis.text import one_line

_FAMILIES = {"loss": "loss", "grad_norm": "gradient norm", "gradient": "gradient", "parameter": "parameters"}


def sentence(verdict: Verdict) -> str:
    """Return *verdict* with what it rests on."""
    arm = verdict.decisive
    if arm.word == DIFFERS:
        return f"{_difference(arm)}; {one_line(arm.cause)}" if arm.cause else _difference(arm)
    if arm.word == NOT_CHECKED:
        return f"{NOT_CHECKED}: {one_line(arm.reason)}"
    if arm.word == ROUNDING:
        return f"{ROUNDING}, at most {furthest(arm):.2f} of the envelope"
    return arm.word


def furthest(arm: Arm) -> float:
    """Return the largest part of the envelope that any quantity takes; above 1 is outside."""
    return max((worst.of_limit for worst in arm.worst), default=0.0)


def place_text(worst: Worst) -> str:
    """Return which quantity *worst* is: ``gradient of layers.0.weight``."""
    told = _FAMILIES[worst.place.family]
    return f"{told} of {one_line(worst.place.tensor)}" if worst.place.tensor else told


def _difference(arm: Arm) -> str:
    """Return what differs first, and on which ranks copies do."""
    drift, first = arm.drift, arm.first
    if drift and (first is None or drift.step < first.place.step):
        copies = f"rank {drift.rank}, whose {one_line(drift.tensor)} is not that of rank 0"
        return f"{DIFFERS} {_since(drift.step)} ({arm.optimizer}), first on {copies}"
    assert first is not None, "a training that differs says where"
    others = f"; {_since(drift.step)} rank {drift.rank}'s parameters are not rank 0's" if drift else ""
    return (
        f"{DIFFERS} {_since(first.place.step)} ({arm.optimizer}), first in {place_text(first)}: relative "
        f"error {first.error:.2g}, rounding makes {first.error / first.of_limit:.2g} at most{others}"
    )


def _since(step: int) -> str:
    return "before the first step" if step < 0 else f"from step {step} on"
