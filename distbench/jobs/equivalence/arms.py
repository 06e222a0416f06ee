"""The evidence of an equivalence check, and its verdict in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from distbench.analysis.loss_deviation import DIFFERENT_BY_DESIGN
from distbench.core.grouping import group_pairs
from distbench.core.text import one_line
from distbench.jobs.equivalence.envelope import DetectionLimit
from distbench.jobs.equivalence.values import QUANTITY_NAMES, Quantity

EQUIVALENT = "equivalent"
"""No number differs in any bit."""
ROUNDING = "equivalent within rounding"
DIFFERS = "differs"
NOT_CHECKED = "not checked"

PER_RANK = (
    "Differs by design in the BatchNorm statistics (batch_norm: per_rank): each case is compared with one "
    "process that divides the batch into the same parts; running statistics are those of each rank, and not "
    "compared"
)
MISSING, NO_NUMBER = "is missing", "is no number"
_DETECTION_TEXTS = {"gradient": "a gradient", "parameter": "an update"}
"""Families of which a verdict says how small an error would be seen."""
_MEAN = "mean_size"
FIXED_TOLERANCE = {"fp64": 1e-7, "fp32": 1.3e-6, "bf16": 1.6e-2, "fp16": 1e-3}
"""``torch.testing.assert_close``'s relative tolerances, shown next to the measured envelope only."""


@dataclass(frozen=True)
class LargestDeviation:
    """Where one kind of quantity is furthest from the reference, relative to the envelope."""

    place: Quantity
    error: float
    """Relative to the reference's own number, gradient, or update of the parameter."""
    of_limit: float
    """Ratio over the limit of the envelope; above 1 it differs by more than rounding."""
    flaw: str = ""
    """What is wrong where no error is relative to anything: "is missing"."""

    @property
    def has_no_value(self) -> bool:
        """Whether there is no number that could be near the reference's or far from it."""
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
    """Why it is not checked."""
    compute: str = ""
    """Dtype of forward and backward pass."""
    is_asked: bool = True
    """Whether the suite trains so: with this optimizer, in this dtype."""
    can_run: bool = True
    """False: it can't run here."""
    reference: str = ""
    """Name of the reference."""
    worst: tuple[LargestDeviation, ...] = ()
    """One for each family of quantities."""
    first: LargestDeviation | None = None
    """First quantity outside the envelope, the furthest of its step and kind."""
    drift: ReplicaDivergence | None = None
    """Where ranks that keep full copies began to differ."""
    from_fp64: float | None = None
    """Distance of the trained parameters from those of the fp64 training, relative to its update."""
    reference_from_fp64: float | None = None
    """The same of the reference: what rounding costs."""
    design: str = ""
    """What makes it another training by design; empty: it is not meant to be one."""
    in_parts: int = 0
    """Into how many parts its reference divides a batch as well, since these matter; 0: they do not."""
    without_dropout: str = ""
    """Which dropout of the model was turned off; empty: none."""
    cause: str = ""
    """Why every data-parallel training of this work must differ, if the reference shows it."""
    advice: str = ""
    """What can be done about that."""
    notes: tuple[str, ...] = ()
    """Remarks: a different optimizer kernel, a reference that is not deterministic."""
    sights: tuple[DetectionLimit, ...] = ()
    """The smallest error that would have been seen, by family."""
    work: str = ""
    """What the work is that it was trained on, in words; empty: the case's own."""

    @property
    def is_counted(self) -> bool:
        """Whether the verdict on the case rests on it.

        It does without one that nobody asked for and this strategy can't have (DeepSpeed's Adam under SGD),
        which says nothing about the others. One that broke down could have shown anything.
        """
        return self.is_asked or self.can_run

    @property
    def limit_share(self) -> float:
        """The largest fraction of the envelope that any quantity takes; above 1 is outside."""
        return max((worst.of_limit for worst in self.worst), default=0.0)


@dataclass(frozen=True)
class EquivalenceEvidence:
    """The evidence of a check of one case."""

    word: str
    """That of the arm that decides."""
    arms: tuple[EquivalenceArm, ...]

    @property
    def limit_share(self) -> float:
        """The largest fraction of the envelope that any quantity of any arm takes."""
        return max((arm.limit_share for arm in self.arms), default=0.0)

    @property
    def checked_arms(self) -> list[EquivalenceArm]:
        """The arms that have a verdict."""
        return [arm for arm in self.arms if arm.word != NOT_CHECKED]

    def sentence(self) -> str:
        """The verdict with what it rests on."""
        decisive = [arm for arm in self.arms if arm.word == self.word]
        arm = max(decisive, key=lambda arm: (arm.is_counted, arm.limit_share))
        if arm.word == DIFFERS:
            difference = _difference_text(arm, self.arm_label(arm)) + _reduced_work_text([arm])
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
        """What holds for several cases: what was trained otherwise, and what to do about differences."""
        dropped = [arm.without_dropout for arm in self.arms if arm.without_dropout]
        said = [
            f"Checked without dropout ({one_line(text)}): what it drops depends on how rows are divided "
            "among ranks"
            for text in dropped
        ]
        if any(arm.in_parts for arm in self.checked_arms):
            said.append(PER_RANK)
        said += [arm.advice for arm in self.arms if arm.word == DIFFERS and arm.advice]
        return tuple(dict.fromkeys(said))

    def basis(self) -> str:
        """The arms that the verdict rests on, and those that it does without."""
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
        """The names of *arms*, those of one dtype together."""
        several = len({arm.compute for arm in self.arms}) > 1
        groups = group_pairs((arm.compute, arm.optimizer) for arm in arms)
        return ", ".join(
            " and ".join(names) + (f" in {compute}" if several else "") for compute, names in groups.items()
        )

    def arm_label(self, arm: EquivalenceArm) -> str:
        """The optimizer of *arm*, with the dtype if the arms differ in that."""
        several = len({arm.compute for arm in self.arms}) > 1
        return f"{arm.optimizer} in {arm.compute}" if several else arm.optimizer

    def smallest_detectable_error(self, family: str, compute: str = "") -> float | None:
        """The smallest error of *family*, in the median tensor, that an arm would have seen.

        Of updates only with the suite's own optimizer, which SGD says nothing about. *compute*: among arms
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
        """Why nothing can be called equivalent by its arms; empty if it can.

        None of them would see, in the median tensor, that a gradient, or an update, was lost altogether.
        """
        for family, name in _DETECTION_TEXTS.items():
            error = self.smallest_detectable_error(family)
            if error is not None and error >= 1:
                return (
                    "the check can't see mistakes: rounding leads the reference's own trainings so far apart "
                    f"that {name} off by {100 * error:.0f}% would pass"
                )
        return ""

    def _sensitivity_text(self) -> str:
        """The smallest errors that would have been seen, in each dtype, the case's own first."""
        computes = list(dict.fromkeys(arm.compute for arm in self.arms))
        told = {compute: text for compute in computes if (text := self._detectable_errors_text(compute))}
        if len(computes) == 1:
            return "".join(f"an error of {text} would be seen" for text in told.values())
        errors = [f"in {compute} an error of {text}" for compute, text in told.items()]
        return ", ".join([f"{error} would be seen" for error in errors[:1]] + errors[1:])

    def _detectable_errors_text(self, compute: str) -> str:
        seen = _DETECTION_TEXTS | {_MEAN: "the mean size of either"}
        errors = {name: self.smallest_detectable_error(family, compute) for family, name in seen.items()}
        *most, last = [
            f"{_percent(error)} of {name}" for name, error in errors.items() if error is not None
        ] or [""]
        return f"{', '.join(most)} or {last}" if most else last

    def to_json(self) -> dict[str, Any]:
        """The arms."""
        return {"arms": [dataclasses.asdict(arm) for arm in self.arms]}


def _percent(part: float) -> str:
    percent = 100 * part
    # one digit, as it is no more exact
    return f"{percent:.0f}%" if percent >= 9.5 else f"{Decimal(f'{percent:.1g}'):f}%"


def _reduced_work_text(arms: Sequence[EquivalenceArm]) -> str:
    """On which reduced work *arms* were trained; empty: on that of the case."""
    works = dict.fromkeys(arm.work for arm in arms if arm.work)
    return f", on reduced work ({'; '.join(works)})" if works else ""


def quantity_text(worst: LargestDeviation) -> str:
    """The quantity that *worst* is: ``gradient of layers.0.weight``."""
    family = QUANTITY_NAMES[worst.place.family]
    return f"{family} of {one_line(worst.place.tensor)}" if worst.place.tensor else family


def _difference_text(arm: EquivalenceArm, name: str) -> str:
    """What differs first, and which rank's copy does."""
    drift, first = arm.drift, arm.first
    if drift and (first is None or drift.step < first.place.step):
        copy = f"rank {drift.rank}, whose {one_line(drift.tensor)} is not rank 0's"
        return f"{DIFFERS} {_step_text(drift.step)} ({name}), first on {copy}"
    assert first is not None, "an arm that differs says where"
    others = f"; {_step_text(drift.step)} rank {drift.rank}'s copy is not rank 0's" if drift else ""
    return _deviation_text(DIFFERS, first, name) + others


def _by_design_text(arm: EquivalenceArm, name: str) -> str:
    """How far it is from its reference, and where that begins."""
    if arm.first is None:
        return f"{DIFFERENT_BY_DESIGN}, but not in the steps that were checked ({name})"
    return _deviation_text(DIFFERENT_BY_DESIGN, arm.first, name)


def _deviation_text(word: str, first: LargestDeviation, name: str) -> str:
    """*word*, and where and how far *first* is beyond rounding."""
    where = f"{word} {_step_text(first.place.step)} ({name}), first in {quantity_text(first)}"
    if first.flaw:
        return f"{where}, which {first.flaw}"
    allowed = first.error / first.of_limit
    return f"{where}: relative error {first.error:.2g}, rounding explains at most {allowed:.2g}"


def _step_text(step: int) -> str:
    return "before the first step" if step < 0 else f"from step {step} on"
