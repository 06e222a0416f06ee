"""The evidence of an equivalence check, and its verdict in words."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from distbench.analysis.text import one_line
from distbench.jobs.equivalence.envelope import Place

EQUIVALENT = "equivalent"
"""No number differs in any bit."""
ROUNDING = "equivalent within rounding"
DIFFERS = "differs"
NOT_CHECKED = "not checked"

FIXED_TOLERANCE = {"fp64": 1e-7, "fp32": 1.3e-6, "bf16": 1.6e-2, "fp16": 1e-3}
"""``torch.testing.assert_close``'s relative tolerances, shown next to the measured envelope only."""
_FAMILIES = {"loss": "loss", "grad_norm": "gradient norm", "gradient": "gradient", "parameter": "parameters"}


@dataclass(frozen=True)
class Worst:
    """Where one kind of quantity is furthest from the reference, relative to the envelope."""

    place: Place
    error: float
    """Relative to the reference's own number, gradient, or update of the parameter."""
    of_limit: float
    """Ratio over the limit of the envelope; above 1 it differs by more than rounding."""


@dataclass(frozen=True)
class Drift:
    """First difference between a rank's full parameters and those of rank 0."""

    step: int
    """-1: before the first step."""
    rank: int
    tensor: str


@dataclass(frozen=True)
class Arm:
    """Verdict on one training of a case: with its own optimizer, or with SGD."""

    optimizer: str
    word: str
    reason: str = ""
    """Why it is not checked."""
    reference: str = ""
    """Name of the reference."""
    worst: tuple[Worst, ...] = ()
    """One for each family of quantities."""
    first: Worst | None = None
    """First quantity outside the envelope, the furthest of its step and kind."""
    drift: Drift | None = None
    """Where ranks that keep full copies began to differ."""
    from_fp64: float | None = None
    """Distance of the trained parameters from those of the fp64 training, relative to its update."""
    reference_from_fp64: float | None = None
    """The same of the reference: what rounding costs."""
    cause: str = ""
    """Why every data-parallel training of this work must differ, if the reference shows it."""
    notes: tuple[str, ...] = ()
    """Remarks: a different optimizer kernel, a reference that is not deterministic."""

    @property
    def furthest(self) -> float:
        """The largest fraction of the envelope that any quantity takes; above 1 is outside."""
        return max((worst.of_limit for worst in self.worst), default=0.0)


@dataclass(frozen=True)
class Equivalence:
    """The evidence of a check of one case."""

    word: str
    """That of the arm that decides."""
    arms: tuple[Arm, ...]

    @property
    def furthest(self) -> float:
        """The largest fraction of the envelope that any quantity of any arm takes."""
        return max((arm.furthest for arm in self.arms), default=0.0)

    def sentence(self) -> str:
        """The verdict with what it rests on."""
        arm = max((arm for arm in self.arms if arm.word == self.word), key=lambda arm: arm.furthest)
        if arm.word == DIFFERS:
            return f"{_difference(arm)}; {one_line(arm.cause)}" if arm.cause else _difference(arm)
        if arm.word == NOT_CHECKED:
            return f"{NOT_CHECKED}: {one_line(arm.reason)}"
        if arm.word == ROUNDING:
            return f"{ROUNDING} ({arm.furthest:.2f} of the allowed deviation)"
        return arm.word

    def to_json(self) -> dict[str, Any]:
        """The arms."""
        return {"arms": [dataclasses.asdict(arm) for arm in self.arms]}


def place_text(worst: Worst) -> str:
    """The quantity that *worst* is: ``gradient of layers.0.weight``."""
    family = _FAMILIES[worst.place.family]
    return f"{family} of {one_line(worst.place.tensor)}" if worst.place.tensor else family


def _difference(arm: Arm) -> str:
    """What differs first, and which rank's copy does."""
    drift, first = arm.drift, arm.first
    if drift and (first is None or drift.step < first.place.step):
        copy = f"rank {drift.rank}, whose {one_line(drift.tensor)} is not rank 0's"
        return f"{DIFFERS} {_since(drift.step)} ({arm.optimizer}), first on {copy}"
    assert first is not None, "an arm that differs says where"
    others = f"; {_since(drift.step)} rank {drift.rank}'s parameters are not rank 0's" if drift else ""
    return (
        f"{DIFFERS} {_since(first.place.step)} ({arm.optimizer}), first in {place_text(first)}: relative "
        f"error {first.error:.2g}, rounding explains at most {first.error / first.of_limit:.2g}{others}"
    )


def _since(step: int) -> str:
    return "before the first step" if step < 0 else f"from step {step} on"
