"""Trainings of a case or a reference, read from records."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from distbench.core.case import Case
from distbench.record import Record, RecordRow, Status


@dataclass(frozen=True)
class Target:
    """Figure of merit of a group of trainings, and the value to reach."""

    name: str
    unit: str
    better: str
    target: float
    doc: str = ""

    def is_reached_by(self, value: float) -> bool:
        """True if *value* is the target or better."""
        return value >= self.target if self.better == "higher" else value <= self.target


@dataclass(frozen=True)
class FinishedTraining:
    """A finished training with one seed."""

    seed: int
    curve: Sequence[RecordRow]
    """Row per step: step, samples, tokens, seconds, loss, value and grad_norm (None: not evaluated)."""
    target_row: RecordRow | None
    """First row whose value is the target or better; None: there is none."""
    crossing_step: float
    """Step at which the value crossed the target, interpolated between evaluations; infinite if never."""

    @property
    def final(self) -> float:
        """Held-out value after the last step."""
        return float(self.curve[-1]["value"])

    @property
    def step_s(self) -> float:
        """Median seconds of a step: the first ones build what later ones reuse."""
        ends = [float(row["seconds"]) for row in self.curve]
        return statistics.median(end - begin for begin, end in itertools.pairwise([0.0, *ends]))


@dataclass(frozen=True)
class TrainingGroup:
    """Trainings of a case, or of a reference."""

    case: Case
    """Case with the seed of the first training."""
    trainings: tuple[FinishedTraining, ...]
    failures: tuple[str, ...] = ()
    """Reasons why other trainings did not finish."""
    findings: tuple[RecordRow, ...] = ()
    """Findings about training health: seed, step, rank, module, kind and text."""

    def to_target(self, key: str) -> list[float]:
        """Steps, samples or seconds (*key*) at which each training reached the target."""
        return [float(training.target_row[key]) for training in self.trainings if training.target_row]

    @property
    def finals(self) -> list[float]:
        """Final value of each training."""
        return [training.final for training in self.trainings]


def training_group(records: Sequence[Record], merit: Target, fallback: Sequence[Record]) -> TrainingGroup:
    """Group the trainings in *records*; if empty, a group of the case of *fallback* without trainings."""
    ordered = sorted(records, key=lambda record: record.round)
    finished = [record for record in ordered if record.status is Status.MEASURED]
    done = [
        training
        for record in finished
        if math.isfinite((training := _finished_training(record, merit)).final)
    ]
    lost = {
        record.case.seed: f"{record.status}: {record.reason}" for record in ordered if _has_failed(record)
    }
    whole = {training.seed for training in done}
    lost |= {
        record.case.seed: f"{merit.name} is not finite at the end"
        for record in finished
        if record.case.seed not in whole
    }
    return TrainingGroup(
        case=(ordered or fallback)[0].case,
        trainings=tuple(done),
        failures=tuple(f"seed {seed}: {why}" for seed, why in lost.items()),
        findings=tuple(
            {**row, "seed": record.case.seed}
            for record in ordered
            for row in record.tables.get("converge_findings", [])
        ),
    )


def _has_failed(record: Record) -> bool:
    return record.status not in (Status.MEASURED, Status.CANCELLED)


def _finished_training(record: Record, merit: Target) -> FinishedTraining:
    curve = record.tables["converge_curve"]
    evaluated = [row for row in curve if row["value"] is not None]
    place = next((place for place, row in enumerate(evaluated) if merit.is_reached_by(row["value"])), None)
    if place is None:
        return FinishedTraining(record.case.seed, curve, None, math.inf)
    reached = evaluated[place]
    before = evaluated[place - 1] if place else None
    return FinishedTraining(record.case.seed, curve, reached, _crossing_step(before, reached, merit.target))


def _crossing_step(before: RecordRow | None, reached: RecordRow, target: float) -> float:
    """Step at which the value crossed the target, interpolated from the evaluation *before*."""
    if before is None or not math.isfinite(before["value"]):
        return float(reached["step"])
    part = (target - before["value"]) / (reached["value"] - before["value"])
    return float(before["step"] + part * (reached["step"] - before["step"]))
