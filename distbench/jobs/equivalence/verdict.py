"""Whether each case is equivalent to its reference: a verdict with its evidence."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from distbench.analysis.verdict import Gravity, Verdict
from distbench.grouping import grouped
from distbench.jobs.equivalence import MOST_STEPS, in_fp32
from distbench.jobs.equivalence.arms import (
    DIFFERS,
    EQUIVALENT,
    FAMILY_NAMES,
    NOT_CHECKED,
    ROUNDING,
    Arm,
    Drift,
    Equivalence,
    Worst,
)
from distbench.jobs.equivalence.earlier import EarlierEnvelope
from distbench.jobs.equivalence.envelope import LOOSEST, Envelope, Place, Training, trainings
from distbench.record import NO_REFERENCE, Record, Status
from distbench.schedule import corners

# from the best to the worst: the worst arm decides
_GRAVITY: dict[str, Gravity] = {EQUIVALENT: "ok", ROUNDING: "ok", NOT_CHECKED: "unknown", DIFFERS: "bad"}


_OTHER_VERSION = "its reference was trained by another version of distbench; start a new run"
_TOO_LARGE = (Status.OOM_GPU, Status.OOM_HOST)


def verdicts(records: Sequence[Record], false_alarm: float) -> dict[str, Verdict]:
    """Verdict on each case that *records* of checks are about, by case id.

    *false_alarm* is the chance that an honest case, over all of its arms, is said to differ.
    """
    court = _Court(records)
    own = [record for record in records if record.job.options.role == "case"]
    own.sort(key=_order)
    of_case = grouped(own, lambda record: record.job.options.of)
    judged = {}
    for case_id, mine in of_case.items():
        arms = mine + _lent(mine[0], of_case)
        judged[case_id] = [(record, court.arm(record, case_id, false_alarm / len(arms))) for record in arms]
    disproved = {
        record.job.options.reference
        for mine in judged.values()
        for record, arm in mine
        if arm.word in (EQUIVALENT, ROUNDING) and court.divides(record)
    }
    return {
        case_id: _verdict(
            [court.without_claims(*pair) if _reference(pair[0]) in disproved else pair[1] for pair in mine]
        )
        for case_id, mine in judged.items()
    }


def _lent(first: Record, of_case: Mapping[str, list[Record]]) -> list[Record]:
    """Records of the same case in fp32, where the suite of a case in 16 bits asks for that as well."""
    again = in_fp32(first.case)
    return of_case.get(again.id, []) if again else []


def _order(record: Record) -> tuple[bool, bool]:
    """The suite's own training first."""
    return _is_again(record), record.case.optimizer.name == "sgd"


def _verdict(arms: list[Arm]) -> Verdict:
    # an arm that this strategy can't have (DeepSpeed's Adam under SGD) says nothing about the other; one that
    # broke down could have shown anything
    counted = [arm for arm in arms if arm.can_run] or arms
    word = max((arm.word for arm in counted), key=list(_GRAVITY).index)
    evidence = Equivalence(word, tuple(arms))
    return Verdict(
        "equivalence",
        word,
        _GRAVITY[word],
        evidence.sentence(),
        evidence,
        voids=word == DIFFERS,
        extent=(evidence.furthest, f"of the allowed deviation ({evidence.basis()})"),
    )


class _Court:
    """Judges each training by its own reference."""

    def __init__(self, records: Sequence[Record]) -> None:
        # by the id of the requested reference, which may have a stand-in
        references = [record for record in records if record.job.provides]
        self._judges = {r.job.provides: _Judge(r) for r in references if r.status is Status.MEASURED}
        self._too_large = {r.job.provides for r in references if r.status in _TOO_LARGE} - set(self._judges)

    def arm(self, record: Record, case_id: str, false_alarm: float) -> Arm:
        """Arm of the case *case_id* that was trained in *record*."""
        # a training that breaks down where its reference does not is not equivalent
        if record.status not in (Status.MEASURED, Status.INVALID_NAN):
            arm = self._unchecked(record, is_again=record.job.options.of != case_id or _is_again(record))
        elif judge := self._judges.get(_reference(record)):
            arm = judge.judge(record, false_alarm)
        else:
            arm = _named(record, NOT_CHECKED, reason=NO_REFERENCE)
        return dataclasses.replace(arm, is_asked=record.case.id == case_id)

    def divides(self, record: Record) -> bool:
        """Whether the training in *record* computes a global batch in smaller parts than its reference."""
        judge = self._judges[_reference(record)]
        return record.case.batch.micro_batch_size < judge.case.batch.micro_batch_size

    def _unchecked(self, record: Record, *, is_again: bool) -> Arm:
        """Arm of a training without a result; *is_again*: in fp32, which nobody asked for."""
        if record.status is Status.UNSUPPORTED:
            waited = record.reason.startswith(NO_REFERENCE)
            too_large = is_again and _reference(record) in self._too_large
            return _named(record, NOT_CHECKED, reason=record.reason, can_run=waited and not too_large)
        # where the longer dtype does not fit, it can't run here
        can_run = not (is_again and record.status in _TOO_LARGE)
        return _named(record, NOT_CHECKED, reason=f"{record.status}: {record.reason}", can_run=can_run)

    def without_claims(self, record: Record, arm: Arm) -> Arm:
        """*arm* without the cause that a training which divides its batches as well disproves."""
        if not arm.cause:
            return arm
        return dataclasses.replace(arm, cause=self._judges[_reference(record)].cause(disproved=True))


def _reference(record: Record) -> str:
    options: Any = record.job.options
    return str(options.reference)


def _is_again(record: Record) -> bool:
    """Whether *record* is of a case in 16 bits that was trained in fp32 as well."""
    options: Any = record.job.options
    return bool(options.precision)


def _named(record: Record, word: str, **more: Any) -> Arm:
    case = record.case
    return Arm(case.optimizer.name, word, compute=case.precision.compute, **more)


class _Judge:
    """Compares trainings with those of one reference."""

    def __init__(self, record: Record) -> None:
        self._record, self.case = record, record.case
        named = trainings(record)
        self._exact = named.get("fp64")
        self._repeat = named["repeat"]
        perturbed = [training for name, training in named.items() if name.startswith("perturbed ")]
        count, compute = int(record.effective.get("parameters") or 0), record.case.precision.compute
        kind = Envelope if named["reference"].is_weighted else EarlierEnvelope
        self.envelope = kind(named["reference"], perturbed, count, compute)

    def cause(self, *, disproved: bool = False) -> str:
        """Why other trainings of this work must differ; *disproved*: one that divides its batches doesn't."""
        rows = self._record.tables.get("check_notes", [])
        return "; ".join(row["text"] for row in rows if not (disproved and row["training"] == "fp64"))

    def judge(self, record: Record, false_alarm: float) -> Arm:
        """Verdict on the training in *record*."""
        training, reference = trainings(record)["case"], self.envelope.reference
        if training.is_weighted != reference.is_weighted:
            return _named(record, NOT_CHECKED, reason=_OTHER_VERSION)
        limits = self.envelope.limits(false_alarm)
        remarks = [row["text"] for row in record.tables.get("check_notes", [])]
        errors = [
            self._worst(training, place, ratio / limits[place.family])
            for place, ratio in self.envelope.ratios(training).items()
            # remarks are about buffers that the engine hides
            if not (remarks and place.family == "buffer")
        ]
        families = grouped(errors, lambda error: error.place.family).values()
        outside = [error for error in errors if error.of_limit > 1]
        first = min(outside, key=lambda error: (error.place.order[:2], -error.of_limit), default=None)
        replicas = record.tables.get("check_replicas", [])
        drift = next((Drift(row["step"], row["of_rank"], row["tensor"]) for row in replicas), None)
        word = DIFFERS if first or drift else ROUNDING
        if word == ROUNDING and _is_same(training, reference):
            word = EQUIVALENT
        elif word == ROUNDING and (broken := self.envelope.broken(false_alarm)):
            return _named(record, NOT_CHECKED, reason=_scattered(*broken))
        return _named(
            record,
            word,
            reference=self._record.case.name,
            worst=tuple(max(same, key=lambda error: error.of_limit) for same in families),
            first=first,
            drift=drift,
            from_fp64=self._from_exact(training),
            reference_from_fp64=self._from_exact(reference),
            cause=self.cause(),
            notes=(*self._notes(record), *remarks),
            sights=self.envelope.sights(false_alarm),
        )

    def _worst(self, training: Training, place: Place, of_limit: float) -> Worst:
        reference, value = self.envelope.reference, training.values.get(place)
        distance, size = training.distance(reference, place), reference.size(place)
        if distance == 0:
            return Worst(place, 0.0, of_limit)
        if value is None:
            return Worst(place, math.inf, of_limit, "is missing")
        if not math.isfinite(distance):
            return Worst(place, math.inf, of_limit, "is no number")
        if size == 0:
            return Worst(place, math.inf, of_limit, f"is {distance:.2g} where the reference's is 0")
        return Worst(place, distance / size, of_limit)

    def _from_exact(self, training: Training) -> float | None:
        """How far the trained parameters are from those of the fp64 training."""
        if self._exact is None:
            return None
        last = max(place.step for place in self._exact.values)
        ends = [p for p in self._exact.values if p.family == "parameter" and p.step == last]
        distance = math.hypot(*(training.distance(self._exact, place) for place in ends))
        moved = math.hypot(*(self._exact.size(place) for place in ends))
        return distance / moved if moved else None

    def _notes(self, record: Record) -> list[str]:
        notes = []
        mine, theirs = _kernel(record), _kernel(self._record)
        if mine != theirs:
            notes.append(f"different optimizer kernel: {mine}, the reference uses {theirs}")
        beyond = [corner for corner in corners(record.case.optimizer) if corner > MOST_STEPS]
        if beyond:
            notes.append(f"the learning rate changes its law at update {beyond[0]}, which no check reaches")
        if not _is_same(self._repeat, self.envelope.reference):
            notes.append("the reference is not bit-reproducible")
        return notes


def _is_same(one: Training, other: Training) -> bool:
    losses = [place for place in other.values if place.family == "loss"]
    return one.digests == other.digests and all(one.distance(other, place) == 0 for place in losses)


def _scattered(family: str, ratio: float) -> str:
    return (
        f"rounding alone takes one training of the reference {ratio:.0f} times as far from it as the others, "
        f"in {FAMILY_NAMES[family]}: no limit of use holds that (at most {LOOSEST:.0f})"
    )


def _kernel(record: Record) -> str:
    optimizer: dict[str, Any] = record.effective.get("optimizer") or {}
    name = str(optimizer.get("class", "unknown")).rpartition(".")[2]
    return f"{name} ({optimizer.get('kernel', 'unknown')})"
