"""Judge trainings by one reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from distbench.analysis.losses.case_losses import DIFFERENT_BY_DESIGN
from distbench.analysis.settings import design_difference
from distbench.core.grouping import group_by
from distbench.core.lr_schedule import breakpoints
from distbench.ipc.trial_files import DETERMINISM_KEY, NO_DROPOUT_KEY, STRICTLY_DETERMINISTIC
from distbench.jobs.equivalence import ADVICE, MAX_SCHEDULE_STEPS
from distbench.jobs.equivalence.arms import (
    DIFFERS,
    EQUIVALENT,
    MISSING,
    NO_NUMBER,
    NOT_CHECKED,
    ROUNDING,
    EquivalenceArm,
    LargestDeviation,
    ReplicaDivergence,
)
from distbench.jobs.equivalence.design_bounds import excessive_moves
from distbench.jobs.equivalence.envelope import EPSILON, RoundingEnvelope
from distbench.jobs.equivalence.legacy_envelope import UnweightedEnvelope
from distbench.jobs.equivalence.reference_trust import reference_problem
from distbench.jobs.equivalence.sizes import RelativeSizes
from distbench.jobs.equivalence.values import Quantity, RecordedTraining, recorded_trainings
from distbench.record import Record
from distbench.strategies.description import IntendedDifference

# training name of a remark that is no cause of a difference
_EXACT_REMARK = "exact"
_OTHER_VERSION = "its reference was trained by another version of distbench; start a new run"


def arm_from_record(record: Record, word: str, **more: Any) -> EquivalenceArm:
    """Build the arm that was trained in *record*, with verdict *word*; *more* are its other fields."""
    case = record.case
    return EquivalenceArm(case.optimizer.name, word, compute=case.precision.label, **more)


class ReferenceJudge:
    """Judge of trainings that are compared with one reference."""

    def __init__(self, record: Record) -> None:
        self._record, self.case = record, record.case
        named = recorded_trainings(record)
        self._fp64 = named.get("fp64")
        self._most_exact = next(((name, named[name]) for name in ("fp64", "fp32") if name in named), None)
        self._repeat = named["repeat"]
        perturbed = [training for name, training in named.items() if name.startswith("perturbed ")]
        count, compute = int(record.effective.get("parameters") or 0), record.case.precision.compute
        reference, self._sizes = named["reference"], None
        if not reference.is_weighted:
            self.envelope: RoundingEnvelope = UnweightedEnvelope(reference, perturbed, count, compute)
        elif compute in EPSILON:
            self._sizes = RelativeSizes(reference, perturbed)
            reference, *perturbed = map(self._sizes.with_sizes, [reference, *perturbed])
            self.envelope = RoundingEnvelope(reference, perturbed, count, compute)
        else:
            self.envelope = RoundingEnvelope(reference, perturbed, count, compute, self._fp64)

    def cause(self, *, disproved: bool = False) -> str:
        """Reason why other trainings of this work must differ.

        *disproved*: without a cause that an equivalent training with a split batch disproves.
        """
        rows = self._record.tables.get("check_notes", [])
        left_out = (_EXACT_REMARK, ADVICE, "fp64") if disproved else (_EXACT_REMARK, ADVICE)
        return "; ".join(row["text"] for row in rows if row["training"] not in left_out)

    def problem(self, false_alarm: float) -> str:
        """Reason why nothing can be compared with the reference; empty: there is none."""
        if self._most_exact is None or self.case.precision.float8 != "none":
            # float8 rounds by more than the spread of its trainings
            return ""
        return reference_problem(self.envelope, self.case.precision.compute, *self._most_exact, false_alarm)

    @property
    def advice(self) -> str:
        """Advice on the cause."""
        rows = self._record.tables.get("check_notes", [])
        return "; ".join(row["text"] for row in rows if row["training"] == ADVICE)

    def judge(self, record: Record, false_alarm: float) -> EquivalenceArm:
        """Judge the training in *record*."""
        if broken := self.problem(false_alarm):
            return arm_from_record(record, NOT_CHECKED, reason=broken)
        training, reference = recorded_trainings(record)["case"], self.envelope.reference
        if (training.is_weighted, training.fingerprint_versions) != (
            reference.is_weighted,
            reference.fingerprint_versions,
        ):
            return arm_from_record(record, NOT_CHECKED, reason=_OTHER_VERSION)
        training = self._sizes.with_sizes(training) if self._sizes else training
        remarks = [row["text"] for row in record.tables.get("check_notes", [])]
        errors = self._deviations(training, self.envelope.limits(false_alarm), bool(remarks))
        families = group_by(errors, lambda error: error.place.family).values()
        design, drift = design_difference(record.case, record), _first_divergence(record)
        outside = [error for error in errors if error.of_limit > 1]
        wrong = [error for error in outside if not _is_by_design(error, design)]
        wrong += excessive_moves(training, reference, design) if design else []
        first = min(
            wrong or outside, key=lambda error: (error.place.order[:2], -error.of_limit), default=None
        )
        word = DIFFERS if wrong or drift else ROUNDING
        if word == ROUNDING and design and (outside or training.last_step < design.since):
            word = DIFFERENT_BY_DESIGN
        elif word == ROUNDING and _is_identical(training, reference):
            word = EQUIVALENT
        elif word == ROUNDING and (flaw := self.envelope.problem(false_alarm)):
            return arm_from_record(record, NOT_CHECKED, reason=flaw)
        return arm_from_record(
            record,
            word,
            reference=self._record.case.name,
            worst=tuple(max(same, key=lambda error: error.of_limit) for same in families),
            first=first,
            drift=drift,
            design=design.why if design else "",
            from_fp64=self._distance_from_fp64(training),
            reference_from_fp64=self._distance_from_fp64(reference),
            in_parts=record.case.batch.total_micro_batches if record.case.depends_on_batch_division else 0,
            without_dropout=str(record.environment.get(NO_DROPOUT_KEY) or ""),
            cause=self.cause(),
            advice=self.advice,
            notes=(*self._notes(record), *remarks),
            sights=self.envelope.detection_limits(false_alarm),
        )

    def _deviations(
        self, training: RecordedTraining, limits: Mapping[str, float], hides_buffers: bool
    ) -> list[LargestDeviation]:
        """Deviations of *training* from the reference at each place, relative to *limits* by family."""
        return [
            self._deviation(training, place, ratio / limits[place.family])
            for place, ratio in self.envelope.ratios(training).items()
            if not (hides_buffers and place.family == "buffer")
        ]

    def _deviation(self, training: RecordedTraining, place: Quantity, of_limit: float) -> LargestDeviation:
        reference, value = self.envelope.reference, training.values.get(place)
        distance, size = training.distance(reference, place), reference.size(place)
        if distance == 0:
            return LargestDeviation(place, 0.0, of_limit)
        if value is None:
            return LargestDeviation(place, math.inf, of_limit, MISSING)
        if not math.isfinite(distance):
            return LargestDeviation(place, math.inf, of_limit, NO_NUMBER)
        if size == 0:
            return LargestDeviation(
                place, math.inf, of_limit, f"is {distance:.2g} where the reference's is 0"
            )
        return LargestDeviation(place, distance / size, of_limit)

    def _distance_from_fp64(self, training: RecordedTraining) -> float | None:
        """Distance of the trained parameters from those of the fp64 training, relative to its update."""
        if self._fp64 is None:
            return None
        last = max(place.step for place in self._fp64.values)
        ends = [p for p in self._fp64.values if p.family == "parameter" and p.step == last]
        distance = math.hypot(*(training.distance(self._fp64, place) for place in ends))
        moved = math.hypot(*(self._fp64.size(place) for place in ends))
        return distance / moved if moved else None

    def _notes(self, record: Record) -> list[str]:
        notes = []
        mine, theirs = _kernel(record), _kernel(self._record)
        if mine != theirs:
            notes.append(f"different optimizer kernel: {mine}, the reference uses {theirs}")
        beyond = [corner for corner in breakpoints(record.case.optimizer) if corner > MAX_SCHEDULE_STEPS]
        if beyond:
            notes.append(
                f"the learning-rate schedule changes phase at update {beyond[0]}, after the last step of "
                "any check"
            )
        rows = self._record.tables.get("check_notes", [])
        notes += [row["text"] for row in rows if row["training"] == _EXACT_REMARK]
        # a record of an earlier version does not have it
        modes = [
            each.environment.get(DETERMINISM_KEY, STRICTLY_DETERMINISTIC) for each in (self._record, record)
        ]
        notes += dict.fromkeys(mode for mode in modes if mode != STRICTLY_DETERMINISTIC)
        if not _is_identical(self._repeat, self.envelope.reference):
            notes.append("the reference is not bit-reproducible")
        return notes


def _first_divergence(record: Record) -> ReplicaDivergence | None:
    """First difference between the copies of the ranks."""
    rows = record.tables.get("check_replicas", [])
    return next((ReplicaDivergence(row["step"], row["of_rank"], row["tensor"]) for row in rows), None)


def _is_by_design(error: LargestDeviation, design: IntendedDifference | None) -> bool:
    """True if *design* allows a deviation as large as *error*.

    The loss of a step precedes its update, and so may its gradients.
    """
    if design is None or error.has_no_value or error.place.step < design.since:
        return False
    before = ("loss",) if design.changes_gradients else ("loss", "gradient", "gradient_size", "grad_norm")
    return error.place.step > design.since or error.place.family not in before


def _is_identical(one: RecordedTraining, other: RecordedTraining) -> bool:
    losses = [place for place in other.values if place.family == "loss"]
    return one.digests == other.digests and all(one.distance(other, place) == 0 for place in losses)


def _kernel(record: Record) -> str:
    optimizer: dict[str, Any] = record.effective.get("optimizer") or {}
    name = str(optimizer.get("class", "unknown")).rpartition(".")[2]
    return f"{name} ({optimizer.get('kernel', 'unknown')})"
