"""Whether each case is equivalent to its reference: a verdict with its evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from distbench.analysis.verdict import Gravity, Verdict
from distbench.grouping import grouped
from distbench.jobs.equivalence import MOST_STEPS
from distbench.jobs.equivalence.arms import (
    DIFFERS,
    EQUIVALENT,
    NOT_CHECKED,
    ROUNDING,
    Arm,
    Drift,
    Equivalence,
    Worst,
)
from distbench.jobs.equivalence.envelope import Envelope, Place, Training, trainings
from distbench.record import Record, Status
from distbench.schedule import corners

# from the best to the worst: the worst arm decides
_GRAVITY: dict[str, Gravity] = {EQUIVALENT: "ok", ROUNDING: "ok", NOT_CHECKED: "unknown", DIFFERS: "bad"}


def verdicts(records: Sequence[Record], false_alarm: float) -> dict[str, Verdict]:
    """Verdict on each case that *records* of checks are about, by case id.

    *false_alarm* is the chance that an honest case, over all of its arms, is said to differ.
    """
    # by the id of the requested reference, which may have a stand-in
    judges = {
        record.job.provides: _Judge(record)
        for record in records
        if record.job.provides and record.status is Status.MEASURED
    }
    own = [record for record in records if record.job.options.role == "case"]
    own.sort(key=lambda record: record.case.optimizer.name == "sgd")
    return {
        case_id: _verdict([_arm(record, judges, false_alarm / len(mine)) for record in mine])
        for case_id, mine in grouped(own, lambda record: record.job.options.of).items()
    }


def _verdict(arms: list[Arm]) -> Verdict:
    # an arm that this strategy can't have (DeepSpeed's Adam under SGD) says nothing about the other
    checked = [arm for arm in arms if arm.word != NOT_CHECKED] or arms
    word = max((arm.word for arm in checked), key=list(_GRAVITY).index)
    evidence = Equivalence(word, tuple(arms))
    return Verdict(
        "equivalence",
        word,
        _GRAVITY[word],
        evidence.sentence(),
        evidence,
        voids=word == DIFFERS,
        extent=(evidence.furthest, "of the allowed deviation"),
    )


def _arm(record: Record, judges: dict[str, _Judge], false_alarm: float) -> Arm:
    options: Any = record.job.options
    optimizer = options.arm
    # a training that breaks down where its reference does not is not equivalent
    if record.status not in (Status.MEASURED, Status.INVALID_NAN):
        known = "" if record.status is Status.UNSUPPORTED else f"{record.status}: "
        return Arm(optimizer, NOT_CHECKED, f"{known}{record.reason}")
    judge = judges.get(options.reference)
    if judge is None:
        return Arm(optimizer, NOT_CHECKED, "its reference has no result")
    return judge.judge(record, optimizer, false_alarm)


class _Judge:
    """Compares trainings with those of one reference."""

    def __init__(self, record: Record) -> None:
        self._record = record
        named = trainings(record)
        self._exact = named.get("fp64")
        self._repeat = named["repeat"]
        perturbed = [training for name, training in named.items() if name.startswith("perturbed ")]
        self.envelope = Envelope(named["reference"], perturbed, int(record.effective.get("parameters") or 0))

    def judge(self, record: Record, optimizer: str, false_alarm: float) -> Arm:
        """Verdict on the training in *record*."""
        training, reference = trainings(record)["case"], self.envelope.reference
        limits = self.envelope.limits(false_alarm)
        errors = [
            Worst(place, self._error(training, place), ratio / limits[place.family])
            for place, ratio in self.envelope.ratios(training).items()
        ]
        families = grouped(errors, lambda error: error.place.family).values()
        outside = [error for error in errors if error.of_limit > 1]
        first = min(outside, key=lambda error: (error.place.order[:2], -error.of_limit), default=None)
        replicas = record.tables.get("check_replicas", [])
        drift = next((Drift(row["step"], row["of_rank"], row["tensor"]) for row in replicas), None)
        word = DIFFERS if first or drift else ROUNDING
        if word == ROUNDING and _is_same(training, reference):
            word = EQUIVALENT
        return Arm(
            optimizer,
            word,
            reference=self._record.case.name,
            worst=tuple(max(same, key=lambda error: error.of_limit) for same in families),
            first=first,
            drift=drift,
            from_fp64=self._from_exact(training),
            reference_from_fp64=self._from_exact(reference),
            cause="; ".join(row["text"] for row in self._record.tables.get("check_notes", [])),
            notes=tuple(self._notes(record)),
        )

    def _error(self, training: Training, place: Place) -> float:
        reference = self.envelope.reference
        distance, size = training.distance(reference, place), reference.size(place)
        if distance == 0:
            return 0.0
        return distance / size if size else math.inf

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


def _kernel(record: Record) -> str:
    optimizer: dict[str, Any] = record.effective.get("optimizer") or {}
    name = str(optimizer.get("class", "unknown")).rpartition(".")[2]
    return f"{name} ({optimizer.get('kernel', 'unknown')})"
