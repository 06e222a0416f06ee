"""Evidence of an equivalence check, and its verdict in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from distbench.analysis.losses.case_losses import DIFFERENT_BY_DESIGN
from distbench.core.grouping import group_pairs
from distbench.core.text import one_line
from distbench.jobs.equivalence.envelope import DetectionLimit
from distbench.jobs.equivalence.values import QUANTITY_NAMES, Quantity

EQUIVALENT = "equivalent"
"""All numbers are bit-identical."""
ROUNDING = "equivalent within rounding"
DIFFERS = "differs"
NOT_CHECKED = "not checked"

PER_RANK = (
    "Differs by design in the BatchNorm statistics (batch_norm: per_rank): each case is compared with one "
    "process that divides the batch into the same parts; running statistics are those of each rank, and not "
    "compared"
)
MISSING, NO_NUMBER = "is missing", "is not a number"
_DETECTION_TEXTS = {"gradient": "a gradient", "parameter": "an update"}
"""Families whose smallest detectable error a verdict reports."""
_MEAN = "mean_size"
FIXED_TOLERANCE = {"fp64": 1e-7, "fp32": 1.3e-6, "bf16": 1.6e-2, "fp16": 1e-3}
"""Relative tolerances of ``torch.testing.assert_close``, shown only next to the measured envelope."""


@dataclass(frozen=True)
class LargestDeviation:
    """Largest deviation of one kind of quantity, relative to the rounding envelope."""

    place: Quantity
    error: float
    """Error relative to the reference's own number, gradient, or update of the parameter."""
    of_limit: float
    """Ratio over the limit of the envelope; above 1 it differs by more than rounding."""
    flaw: str = ""
    """Flaw that can't be given as a relative error: "is missing"."""

    @property
    def has_no_value(self) -> bool:
        """True if there is not a number to compare with the reference's."""
        return self.flaw in (MISSING, NO_NUMBER)


@dataclass(frozen=True)
class ReplicaDivergence:
    """First difference between a rank's full parameters or buffers and those of rank 0."""

    step: int
    """-1: before the first step."""
    rank: int
    tensor: str


@dataclass(frozen=True)
class EquivalenceArm:
    """Verdict on one training of a case: with its own optimizer or with SGD, in its dtype or in fp32."""

    optimizer: str
    word: str
    reason: str = ""
    """Reason why it is not checked."""
    compute: str = ""
    """Dtype of forward and backward pass."""
    is_asked: bool = True
    """True if the suite requests this training: this optimizer in this dtype."""
    can_run: bool = True
    """False: it can't run here."""
    reference: str = ""
    """Name of the reference."""
    worst: tuple[LargestDeviation, ...] = ()
    """Largest deviation of each family of quantities."""
    first: LargestDeviation | None = None
    """First quantity outside the envelope, the furthest of its step and kind."""
    drift: ReplicaDivergence | None = None
    """First difference between ranks that keep full copies."""
    from_fp64: float | None = None
    """Distance of the trained parameters from those of the fp64 training, relative to its update."""
    reference_from_fp64: float | None = None
    """The same distance of the reference: the effect of rounding."""
    design: str = ""
    """Reason why the strategy trains differently by design; empty: it does not."""
    in_parts: int = 0
    """Number of parts into which its reference also splits a batch, since these matter; 0: they do not."""
    without_dropout: str = ""
    """Dropout of the model that was disabled; empty: none."""
    cause: str = ""
    """Reason why every data-parallel training of this work must differ, if the reference shows it."""
    advice: str = ""
    """Advice on that cause."""
    notes: tuple[str, ...] = ()
    """Remarks: a different optimizer kernel, a reference that is not deterministic."""
    sights: tuple[DetectionLimit, ...] = ()
    """Smallest error that would have been detected, by family."""
    work: str = ""
    """Reduced work that it was trained on, in words; empty: the case's own work."""

    @property
    def is_counted(self) -> bool:
        """True if the verdict on the case counts this training.

        A training that the suite did not request and the strategy can't run (DeepSpeed's Adam with SGD) says
        nothing about the others, so it is not counted. One that broke down could have shown anything.
        """
        return self.is_asked or self.can_run

    @property
    def limit_share(self) -> float:
        """Largest fraction of the envelope that any quantity takes; above 1 is outside."""
        return max((worst.of_limit for worst in self.worst), default=0.0)


@dataclass(frozen=True)
class EquivalenceEvidence:
    """Evidence of the check of one case."""

    word: str
    """Word of the arm that decides."""
    arms: tuple[EquivalenceArm, ...]

    @property
    def limit_share(self) -> float:
        """Largest fraction of the envelope that any quantity of any arm takes."""
        return max((arm.limit_share for arm in self.arms), default=0.0)

    @property
    def checked_arms(self) -> list[EquivalenceArm]:
        """Arms that have a verdict."""
        return [arm for arm in self.arms if arm.word != NOT_CHECKED]

    def sentence(self) -> str:
        """Return the verdict with its basis, as a sentence."""
        decisive = [arm for arm in self.arms if arm.word == self.word]
        arm = max(decisive, key=lambda arm: (arm.is_counted, arm.limit_share))
        if arm.word == DIFFERS:
            difference = difference_text(arm, self.arm_label(arm)) + _reduced_work_text([arm])
            return f"{difference}; {one_line(arm.cause)}" if arm.cause else difference
        if arm.word == DIFFERENT_BY_DESIGN:
            return f"{_by_design_text(arm, self.arm_label(arm))}{_reduced_work_text([arm])}; {arm.design}"
        if arm.word == NOT_CHECKED:
            which = f"{self.arm_label(arm)}: " if self.checked_arms else ""
            return f"{NOT_CHECKED}: {which}{one_line(arm.reason)}"
        if arm.word == EQUIVALENT:
            return f"{EQUIVALENT} ({self.basis()})"
        parts = (f"{arm.limit_share:.2f} of the allowed deviation", self.basis(), self._sensitivity_text())
        return f"{ROUNDING} ({'; '.join(part for part in parts if part)})"

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks that apply to several cases: different training conditions, and advice on differences."""
        dropped = [arm.without_dropout for arm in self.arms if arm.without_dropout]
        remarks = [
            f"Checked without dropout ({one_line(text)}): the elements that it drops depend on the "
            "division of rows among ranks"
            for text in dropped
        ]
        if any(arm.in_parts for arm in self.checked_arms):
            remarks.append(PER_RANK)
        remarks += [arm.advice for arm in self.arms if arm.word == DIFFERS and arm.advice]
        return tuple(dict.fromkeys(remarks))

    def basis(self) -> str:
        """Name the arms on which the verdict rests, and those that are not counted."""
        rests = self._listed(self.checked_arms)
        without = self._listed([arm for arm in self.arms if not arm.is_counted])
        parts = ", in equal parts" if any(arm.in_parts for arm in self.checked_arms) else ""
        dropped = ", without dropout" if any(arm.without_dropout for arm in self.checked_arms) else ""
        return (
            (f"{rests}, without {without}" if without else rests)
            + parts
            + dropped
            + _reduced_work_text(self.checked_arms)
        )

    def _listed(self, arms: Sequence[EquivalenceArm]) -> str:
        """Names of *arms*, grouped by dtype."""
        several = len({arm.compute for arm in self.arms}) > 1
        groups = group_pairs((arm.compute, arm.optimizer) for arm in arms)
        return ", ".join(
            " and ".join(names) + (f" in {compute}" if several else "") for compute, names in groups.items()
        )

    def arm_label(self, arm: EquivalenceArm) -> str:
        """Optimizer of *arm*, with the dtype if the arms differ in that."""
        several = len({arm.compute for arm in self.arms}) > 1
        return f"{arm.optimizer} in {arm.compute}" if several else arm.optimizer

    def smallest_detectable_error(self, family: str, compute: str = "") -> float | None:
        """Smallest error of *family*, in the median tensor, that an arm would have detected.

        For updates only with the suite's own optimizer, about which SGD says nothing. *compute*: among arms
        in that dtype; empty: among all.
        """
        own = {arm.optimizer for arm in self.arms if arm.is_asked}
        arms = [arm for arm in self.checked_arms if family != "parameter" or arm.optimizer in own]
        seen = [
            sight.typical
            for arm in arms
            if compute in ("", arm.compute)
            for sight in arm.sights
            if sight.family == family
        ]
        return min(seen, default=None)

    @property
    def insensitivity(self) -> str:
        """Reason why none of its arms can be called equivalent; empty if they can.

        None of its arms would detect, in the median tensor, that a gradient, or an update, was lost
        altogether; or none in the case's own dtype would, by that tensor or by the mean size of all.
        """
        for family, name in _DETECTION_TEXTS.items():
            own, dtype = self.arms[0].compute, ""
            error = self.smallest_detectable_error(family)
            if error is not None and error < 1:
                dtype, seen = f" in {own}", (family, _MEAN)
                errors = [self.smallest_detectable_error(each, own) for each in seen]
                error = min((each for each in errors if each is not None), default=None)
            if error is not None and error >= 1:
                return (
                    f"the check can't detect errors{dtype}: rounding separates the trainings of the "
                    f"reference so far that {name} off by {100 * error:.0f}% would pass"
                )
        return ""

    def _sensitivity_text(self) -> str:
        """Smallest errors that would have been detected, in each dtype, the case's own first."""
        computes = list(dict.fromkeys(arm.compute for arm in self.arms))
        texts = {compute: text for compute in computes if (text := self._detectable_errors_text(compute))}
        if len(computes) == 1:
            return "".join(f"an error of {text} would be detected" for text in texts.values())
        errors = [f"in {compute} an error of {text}" for compute, text in texts.items()]
        return ", ".join([f"{error} would be detected" for error in errors[:1]] + errors[1:])

    def _detectable_errors_text(self, compute: str) -> str:
        seen = _DETECTION_TEXTS | {_MEAN: "the mean size of either"}
        errors = {name: self.smallest_detectable_error(family, compute) for family, name in seen.items()}
        *most, last = [
            f"{_percent(error)} of {name}" for name, error in errors.items() if error is not None
        ] or [""]
        return f"{', '.join(most)} or {last}" if most else last

    def to_json(self) -> dict[str, Any]:
        """Arms as JSON."""
        return {"arms": [dataclasses.asdict(arm) for arm in self.arms]}


def _percent(part: float) -> str:
    percent = 100 * part
    # one digit: it is no more exact
    return f"{percent:.0f}%" if percent >= 9.5 else f"{Decimal(f'{percent:.1g}'):f}%"


def _reduced_work_text(arms: Sequence[EquivalenceArm]) -> str:
    """Reduced work on which *arms* were trained, in words; empty: the case's own work."""
    works = dict.fromkeys(arm.work for arm in arms if arm.work)
    return f", on reduced work ({'; '.join(works)})" if works else ""


def quantity_text(worst: LargestDeviation) -> str:
    """Name the quantity of *worst*: ``gradient of layers.0.weight``."""
    family = QUANTITY_NAMES[worst.place.family]
    return f"{family} of {one_line(worst.place.tensor)}" if worst.place.tensor else family


def difference_text(arm: EquivalenceArm, name: str) -> str:
    """Describe the first difference, and the first rank whose copy differs."""
    drift, first = arm.drift, arm.first
    if drift and (first is None or drift.step < first.place.step):
        copy = f"rank {drift.rank}, whose {one_line(drift.tensor)} is not rank 0's"
        return f"{DIFFERS} {_step_text(drift.step)} ({name}), first on {copy}"
    assert first is not None, "an arm that differs says where"
    others = f"; {_step_text(drift.step)} rank {drift.rank}'s copy is not rank 0's" if drift else ""
    return _deviation_text(DIFFERS, first, name) + others


def _by_design_text(arm: EquivalenceArm, name: str) -> str:
    """Describe its deviation from the reference, and where that begins."""
    if arm.first is None:
        return f"{DIFFERENT_BY_DESIGN}, but not in the steps that were checked ({name})"
    return _deviation_text(DIFFERENT_BY_DESIGN, arm.first, name)


def _deviation_text(word: str, first: LargestDeviation, name: str) -> str:
    """Describe *first*, the deviation beyond rounding, after *word*."""
    where = f"{word} {_step_text(first.place.step)} ({name}), first in {quantity_text(first)}"
    if first.flaw:
        return f"{where}, which {first.flaw}"
    allowed = first.error / first.of_limit
    return f"{where}: relative error {first.error:.2g}, rounding explains at most {allowed:.2g}"


def _step_text(step: int) -> str:
    return "before the first step" if step < 0 else f"from step {step} on"
