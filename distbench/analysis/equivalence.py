"""Whether each case is the same training as its reference: a verdict with its evidence."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.envelope import Envelope, Place, Training, trainings
from distbench.record import Record, Status

EQUIVALENT = "equivalent"
"""No number differs in any bit."""
ROUNDING = "equivalent within rounding"
DIFFERS = "differs"
NOT_CHECKED = "not checked"

# from the best to the worst: the worst arm decides
_ORDER = (EQUIVALENT, ROUNDING, NOT_CHECKED, DIFFERS)

FIXED_TOLERANCE = {"fp64": 1e-7, "fp32": 1.3e-6, "bf16": 1.6e-2, "fp16": 1e-3}
"""``torch.testing.assert_close``'s relative tolerances, printed beside the measured envelope only."""


@dataclass(frozen=True)
class Worst:
    """Where one kind of quantity is furthest from the reference, in terms of the envelope."""

    place: Place
    error: float
    """Relative to the reference's own number, gradient, or update of the parameter."""
    of_limit: float
    """Its ratio over the envelope's limit; above 1 it differs by more than rounding."""


@dataclass(frozen=True)
class Drift:
    """The first difference between a rank's own whole parameters and those of rank 0."""

    step: int
    """-1: before the first step."""
    rank: int
    tensor: str


@dataclass(frozen=True)
class Arm:
    """The verdict on one training of a case: with its own optimizer, or with SGD."""

    optimizer: str
    word: str
    reason: str = ""
    """Why it is not checked."""
    reference: str = ""
    """Name of the case that stood as the reference."""
    worst: tuple[Worst, ...] = ()
    """One for each family of quantities."""
    first: Worst | None = None
    """The first quantity outside of the envelope, the furthest of its step and kind."""
    drift: Drift | None = None
    """Where ranks that keep whole copies began to have different ones."""
    from_fp64: float | None = None
    """Distance of the trained parameters from those of the fp64 training, relative to its update."""
    reference_from_fp64: float | None = None
    """The same of the reference: what rounding costs."""
    cause: str = ""
    """Why every data-parallel training of this work must differ, if the reference shows it."""
    notes: tuple[str, ...] = ()
    """What else to know: another kernel of the optimizer, a reference that is not deterministic."""


@dataclass(frozen=True)
class Verdict:
    """What the check says of one case."""

    word: str
    arms: tuple[Arm, ...]

    @property
    def decisive(self) -> Arm:
        """Return the arm that decides."""
        return max((arm for arm in self.arms if arm.word == self.word), key=_excess)


def verdicts(records: Iterable[Record], false_alarm: float) -> dict[str, Verdict]:
    """Return the verdict on each case that *records* of checks speak of, by case id.

    *false_alarm* is the chance that an honest case, over all of its arms, is said to differ.
    """
    records = list(records)
    references = _references(records)
    arms: dict[str, list[Record]] = {}
    for record in records:
        if record.job.options.get("role") == "case":
            arms.setdefault(str(record.job.options["of"]), []).append(record)
    judges = {id_: _Judge(record) for id_, record in references.items()}
    return {
        case_id: _verdict(
            [_arm(record, judges, false_alarm / len(own)) for record in sorted(own, key=_is_sgd)]
        )
        for case_id, own in arms.items()
    }


def _is_sgd(record: Record) -> bool:
    return record.case.optimizer.name == "sgd"


def _references(records: Sequence[Record]) -> dict[str, Record]:
    """Return by the id of the wanted reference the one that was trained, itself or in its place."""
    return {
        str(record.job.options["reference"]): record
        for record in records
        if record.job.options.get("role") == "reference" and record.status is Status.MEASURED
    }


def _verdict(arms: list[Arm]) -> Verdict:
    # an arm that this strategy can't have (DeepSpeed's Adam under SGD) says nothing about the other
    told = [arm for arm in arms if arm.word != NOT_CHECKED] or arms
    return Verdict(max((arm.word for arm in told), key=_ORDER.index), tuple(arms))


def _arm(record: Record, judges: dict[str, _Judge], false_alarm: float) -> Arm:
    options = record.job.options
    optimizer = str(options["arm"])
    # a training that breaks down where its reference does not is another training
    if record.status not in (Status.MEASURED, Status.INVALID_NAN):
        known = "" if record.status is Status.UNSUPPORTED else f"{record.status}: "
        return Arm(optimizer, NOT_CHECKED, f"{known}{record.reason}")
    judge = judges.get(str(options["reference"]))
    if judge is None:
        return Arm(optimizer, NOT_CHECKED, "its reference has no result")
    return judge.judge(record, optimizer, false_alarm)


class _Judge:
    """Holds trainings against those of one reference."""

    def __init__(self, record: Record) -> None:
        self._record = record
        told = trainings(record)
        self._exact = told.get("fp64")
        self._repeat = told["repeat"]
        perturbed = [training for name, training in told.items() if name.startswith("perturbed ")]
        self.envelope = Envelope(told["reference"], perturbed, int(record.effective.get("parameters") or 0))

    def judge(self, record: Record, optimizer: str, false_alarm: float) -> Arm:
        """Return the verdict on the training in *record*."""
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
        """Return how far the trained parameters are from those of the fp64 training."""
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
            notes.append(f"the optimizer is {mine}, the reference's {theirs}: another kernel")
        if not _is_same(self._repeat, self.envelope.reference):
            notes.append("the reference, trained twice, is not the same in every bit")
        return notes


def _first(outside: list[Worst]) -> Worst | None:
    """Return the furthest of the first quantities outside of the envelope."""
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
    told: dict[str, Any] = record.effective.get("optimizer") or {}
    return f"{str(told.get('class', 'unknown')).rpartition('.')[2]} ({told.get('kernel', 'unknown')})"


def _excess(arm: Arm) -> float:
    return max((found.of_limit for found in arm.worst), default=0.0)
