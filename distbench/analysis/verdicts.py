"""Verdicts of equivalence in words."""

from __future__ import annotations

from distbench.analysis.equivalence import DIFFERS, NOT_CHECKED, ROUNDING, Arm, Verdict, Worst
from distbench.analysis.text import one_line

_FAMILIES = {"loss": "loss", "grad_norm": "gradient norm", "gradient": "gradient", "parameter": "parameters"}


def sentence(verdict: Verdict) -> str:
    """Return *verdict* with what it rests on."""
    arm = verdict.decisive
    if arm.word == DIFFERS:
        return _difference(arm)
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
    if arm.first is None:
        return f"{DIFFERS} ({arm.optimizer}): {arm.reason}"
    step, allowed = arm.first.place.step, arm.first.error / arm.first.of_limit
    began = "before the first step" if step < 0 else f"from step {step} on"
    drift = f"; {arm.reason}" if arm.reason else ""
    return (
        f"{DIFFERS} {began} ({arm.optimizer}), first in {place_text(arm.first)}: relative error "
        f"{arm.first.error:.2g}, rounding makes {allowed:.2g} at most{drift}"
    )
