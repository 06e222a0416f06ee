"""Whether each case is equivalent to its reference: a verdict with its evidence."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from distbench.analysis.verdict import Gravity, Verdict
from distbench.grouping import grouped
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

KIND = "equivalence"
# from the best to the worst: the worst arm decides
_GRAVITY: dict[str, Gravity] = {EQUIVALENT: "ok", ROUNDING: "ok", NOT_CHECKED: "unknown", DIFFERS: "bad"}
_ORDER = tuple(_GRAVITY)


def verdicts(records: Sequence[Record], false_alarm: float) -> dict[str, Verdict]:
    """Verdict on each case that *records* of checks are about, by case id.

    *false_alarm* is the chance that an honest case, over all of its arms, is said to differ.
    """
    references = _references(records)
    own = (record for record in records if record.job.options.role == "case")
    arms = grouped(own, lambda record: record.job.options.of)
    judges = {id_: _Judge(record) for id_, record in references.items()}
    return {
        case_id: _verdict(
            [_arm(record, judges, false_alarm / len(mine)) for record in sorted(mine, key=_is_sgd)]
        )
        for case_id, mine in arms.items()
    }


def _is_sgd(record: Record) -> bool:
    return record.case.optimizer.name == "sgd"


def _references(records: Sequence[Record]) -> dict[str, Record]:
    """Trained references by the id of the requested one: itself or a stand-in."""
    return {
        record.job.provides: record
        for record in records
        if record.job.provides and record.status is Status.MEASURED
    }


def _verdict(arms: list[Arm]) -> Verdict:
    # an arm that this strategy can't have (DeepSpeed's Adam under SGD) says nothing about the other
    checked = [arm for arm in arms if arm.word != NOT_CHECKED] or arms
    word = max((arm.word for arm in checked), key=_ORDER.index)
    found = Equivalence(word, tuple(arms))
    return Verdict(KIND, word, _GRAVITY[word], found.sentence(), found, word == DIFFERS, found.extent)


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
        limits = self._limits(false_alarm)
        worst: dict[str, Worst] = {}
        outside: list[Worst] = []
        for place, ratio in self.envelope.ratios(training).items():
            found = Worst(place, self._error(training, place), ratio / limits[place.family])
            if place.family not in worst or found.of_limit > worst[place.family].of_limit:
                worst[place.family] = found
            if found.of_limit > 1:
                outside.append(found)
        first = _first(outside)
        drift = _drift(record)
        word = DIFFERS if first or drift else ROUNDING
        if word == ROUNDING and _is_same(training, reference):
            word = EQUIVALENT
        return Arm(
            optimizer,
            word,
            reference=self._record.case.name,
            worst=tuple(worst.values()),
            first=first,
            drift=drift,
            from_fp64=self._from_exact(training),
            reference_from_fp64=self._from_exact(reference),
            cause="; ".join(row["text"] for row in self._record.tables.get("check_notes", [])),
            notes=tuple(self._notes(record)),
        )

    @functools.cache  # noqa: B019 - a judge lives as long as its verdicts are being made
    def _limits(self, false_alarm: float) -> dict[str, float]:
        return self.envelope.limits(false_alarm)

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
        if not _is_same(self._repeat, self.envelope.reference):
            notes.append("the reference is not bit-reproducible")
        return notes


def _first(outside: list[Worst]) -> Worst | None:
    """Furthest of the first quantities outside of the envelope."""
    if not outside:
        return None
    began = min(found.place.order[:2] for found in outside)
    return max((f for f in outside if f.place.order[:2] == began), key=lambda f: f.of_limit)


def _is_same(one: Training, other: Training) -> bool:
    losses = [place for place in other.values if place.family == "loss"]
    return one.digests == other.digests and all(one.distance(other, place) == 0 for place in losses)


def _drift(record: Record) -> Drift | None:
    rows = record.tables.get("check_replicas", [])
    return Drift(rows[0]["step"], rows[0]["of_rank"], rows[0]["tensor"]) if rows else None


def _kernel(record: Record) -> str:
    optimizer: dict[str, Any] = record.effective.get("optimizer") or {}
    name = str(optimizer.get("class", "unknown")).rpartition(".")[2]
    return f"{name} ({optimizer.get('kernel', 'unknown')})"
