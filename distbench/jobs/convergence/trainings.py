"""The trainings of a case, or of a reference, as their records tell them."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from distbench.core.case import Case
from distbench.record import Record, Row, Status


@dataclass(frozen=True)
class Target:
    """Figure of merit of a group of trainings, and the value to reach."""

    name: str
    unit: str
    better: str
    target: float
    doc: str = ""

    def reached(self, value: float) -> bool:
        """Whether *value* is the target or better."""
        return value >= self.target if self.better == "higher" else value <= self.target


@dataclass(frozen=True)
class Training:
    """A finished training with one seed."""

    seed: int
    curve: Sequence[Row]
    """A row per step: step, samples, tokens, seconds, loss, value and grad_norm (None: not evaluated)."""
    reached: Row | None
    """The first row whose value is the target or better."""
    crossed: float
    """Step at which the value passed the target, between evaluations on a line; infinite if never."""

    @property
    def final(self) -> float:
        """The held-out value after the last step."""
        return float(self.curve[-1]["value"])

    @property
    def step_s(self) -> float:
        """Median seconds of a step: the first ones build what later ones reuse."""
        ends = [float(row["seconds"]) for row in self.curve]
        return statistics.median(end - begin for begin, end in itertools.pairwise([0.0, *ends]))


@dataclass(frozen=True)
class Group:
    """The trainings of a case, or of a reference."""

    case: Case
    """With the seed of the first training."""
    trainings: tuple[Training, ...]
    broken: tuple[str, ...] = ()
    """Why the others did not finish."""
    findings: tuple[Row, ...] = ()
    """Findings on their health: seed, step, rank, module, kind and text."""

    def to_target(self, key: str) -> list[float]:
        """Steps, samples or seconds (*key*) at which each training reached the target."""
        return [float(training.reached[key]) for training in self.trainings if training.reached]

    @property
    def finals(self) -> list[float]:
        """Value of each training at its end."""
        return [training.final for training in self.trainings]


def group_of(records: Sequence[Record], merit: Target, instead: Sequence[Record]) -> Group:
    """The trainings in *records*; without any, none of the case of *instead*."""
    ordered = sorted(records, key=lambda record: record.round)
    finished = [record for record in ordered if record.status is Status.MEASURED]
    done = [training for record in finished if math.isfinite((training := _training(record, merit)).final)]
    lost = {record.case.seed: f"{record.status}: {record.reason}" for record in ordered if _is_lost(record)}
    whole = {training.seed for training in done}
    lost |= {
        record.case.seed: f"{merit.name} is not finite at the end"
        for record in finished
        if record.case.seed not in whole
    }
    return Group(
        case=(ordered or instead)[0].case,
        trainings=tuple(done),
        broken=tuple(f"seed {seed}: {why}" for seed, why in lost.items()),
        findings=tuple(
            {**row, "seed": record.case.seed}
            for record in ordered
            for row in record.tables.get("converge_findings", [])
        ),
    )


def _is_lost(record: Record) -> bool:
    return record.status not in (Status.MEASURED, Status.CANCELLED)


def _training(record: Record, merit: Target) -> Training:
    curve = record.tables["converge_curve"]
    evaluated = [row for row in curve if row["value"] is not None]
    place = next((place for place, row in enumerate(evaluated) if merit.reached(row["value"])), None)
    if place is None:
        return Training(record.case.seed, curve, None, math.inf)
    reached = evaluated[place]
    before = evaluated[place - 1] if place else None
    return Training(record.case.seed, curve, reached, _crossed(before, reached, merit.target))


def _crossed(before: Row | None, reached: Row, target: float) -> float:
    """Step at which the value passed the target, on a line from the evaluation *before*."""
    if before is None or not math.isfinite(before["value"]):
        return float(reached["step"])
    part = (target - before["value"]) / (reached["value"] - before["value"])
    return float(before["step"] + part * (reached["step"] - before["step"]))
