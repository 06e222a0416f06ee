"""A summary of each case: its status, and each of its numbers over trials with the spread."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from distbench.analysis.estimate import Estimate
from distbench.analysis.job_results import Gravity, Verdict
from distbench.analysis.losses import losses_of, numbers
from distbench.analysis.price import cost_of, described, prices
from distbench.analysis.settings import design_of, unsteady
from distbench.analysis.statistics.intervals import intervals
from distbench.analysis.verdicts import verdicts, vouched
from distbench.core.case import CHOICES, CURRENT, Axis, Case
from distbench.core.grouping import grouped
from distbench.core.job import MEASURE, job_kind
from distbench.ipc.trial_files import log_file
from distbench.record import Failure, Record, Status, of_kind
from distbench.record.reading import Damaged
from distbench.record.run_folder import Run, RunInfo
from distbench.strategies.base import DDP
from distbench.strategies.description import ByDesign
from distbench.suite.cost import Cost

T = TypeVar("T")

PENDING = "pending"
"""Status of a case that has no record yet."""
DAMAGED = "damaged"
"""Status of a case none of whose trials can be read, as files of them are damaged."""
UNMEASURED = "unmeasured"
"""Status of a case that was not to be measured (``measure.trials: 0``)."""
REFERENCE = DDP
"""Label of the strategy that throughput is relative to."""
THROUGHPUT, MEMORY, COMMUNICATION, LOSS = "tokens_per_s", "memory_peak", "comm_bytes", "final_loss"
PACE = (THROUGHPUT, "tokens_per_s_per_device", "samples_per_s", "step_s", "mfu", "hfu", "energy_per_token")
"""Columns that share the noise of the clock: cases are compared by their intervals."""

# throughput is relative to cases that differ in the strategy alone: of the parts of the batch, larger where
# ranks share rows, either the number or the size is the same
_BUT: tuple[tuple[Axis, ...], ...] = (
    ("strategy", "environment", "batch.micro_batch_size"),
    ("strategy", "environment", "batch.gradient_accumulation_steps"),
)
_UNKNOWN_COLUMN = {"unit": "", "better": None, "over_ranks": "", "doc": "Not described by its record."}
# a trial that was stopped says nothing about its case; any other end does
_UNINFORMATIVE = (Status.CANCELLED, Status.UNSUPPORTED)


# known by identity: a summary holds a whole record, and what is made of a run is cached by its summaries
@dataclass(frozen=True, eq=False)
class CaseSummary:
    """All records of one case, summarised."""

    case: Case
    status: str
    """A word of ``Status``, ``pending``, ``damaged`` or ``unmeasured``."""
    reason: str
    trials: int
    """Trials that were measured."""
    failed: int
    """Trials that were not."""
    worst: str = ""
    """How the trial ended that ``reason`` is about, a word of ``Status``; empty if none failed."""
    degraded_trials: int = 0
    """Measured trials on a noisy machine; used only if there is no clean one."""
    degraded: str = ""
    """Why the numbers may not be compared: all trials ran on a noisy machine."""
    values: dict[str, Estimate] = field(default_factory=dict)
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Column name -> unit, better, over_ranks, doc, of every column that any trial describes."""
    absent: dict[str, str] = field(default_factory=dict)
    """Column name -> why ``values`` has no such number."""
    losses: list[float | None] = field(default_factory=list)
    """Loss of each step from the first warm-up step on, mean over ranks, of the first usable
    trial; None where a rank had none or it was not finite."""
    relative: float | None = None
    """Throughput relative to ddp at the same world size and otherwise the same work."""
    relative_absent: str = ""
    """Why ``relative`` is None."""
    detail: Record | None = None
    """The first usable trial, for what is shown of one trial instead of over trials."""
    unsteady: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Setting of the live engine that differs between measured trials -> its values."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """Kind of job -> what its judgement of the case comes to, of those that were asked for."""
    failure: Failure | None = None
    log: str = ""
    """Log of the rank that ``failure`` blames, relative to the run's folder; empty if there is none."""

    @property
    def measured(self) -> bool:
        """Whether there are numbers."""
        return self.status == Status.MEASURED

    @property
    def differs(self) -> bool:
        """Whether a judgement found it to be a different training than its reference."""
        return any(verdict.voids for verdict in self.verdicts.values())

    @property
    def unproven(self) -> ByDesign | None:
        """In what it is another training by design, unless it was shown to train as well as its reference."""
        return None if vouched(self.verdicts) else design_of(self.case, self.detail)

    @property
    def comparable(self) -> bool:
        """Whether there are numbers that may be compared with those of other cases."""
        return self.measured and not self.degraded and not self.differs

    def positive(self, column: str) -> dict[int, float]:
        """Trials of a number that can be in a ratio, by round; empty if one is not above 0."""
        estimate = self.values.get(column)
        if estimate is None or min(estimate.trials, default=0.0) <= 0:
            return {}
        return dict(zip(estimate.rounds, estimate.trials, strict=True))

    def of_gravity(self, gravity: Gravity) -> list[Verdict]:
        """Verdicts of that gravity, in the order of kinds."""
        return [verdict for verdict in self.verdicts.values() if verdict.gravity == gravity]

    def evidence(self, kind: type[T]) -> T | None:
        """The evidence of the verdict that rests on a *kind* of it; None: there is no such verdict."""
        details = (verdict.detail for verdict in self.verdicts.values())
        return next((detail for detail in details if isinstance(detail, kind)), None)


def summarise(info: RunInfo, records: Sequence[Record], damaged: Sequence[Damaged] = ()) -> list[CaseSummary]:
    """Summaries of the cases of a run, in the order of the suite.

    Args:
        damaged: Trials that can't be read: they are in no number.
    """
    unreadable = {trial.case_id: trial for trial in damaged if trial.folder == job_kind(MEASURE).folder}
    judged = verdicts(info.suite, records)
    records = of_kind(records, MEASURE)
    by_case = grouped(records, lambda record: record.case_id)
    cases = {item.case.id: item.case for item in info.cases}
    # a run folder may hold records of cases that run.json does not name: show them too
    cases |= {record.case_id: record.case for record in records if record.case_id not in cases}
    rows = [
        dataclasses.replace(
            _summary(case, by_case[case_id])
            if case_id in by_case
            else _unknown(case, info, unreadable.get(case_id)),
            verdicts=judged.get(case_id, {}),
        )
        for case_id, case in cases.items()
    ]
    rows = _priced(_paced(rows), cost_of(info.suite))
    # of the same work the last one stays: the first in the suite, of the current environment if it has one
    others = [row for row in rows if row.case.environment != CURRENT]
    ours = [row for row in rows if row.case.environment == CURRENT]
    last = [*reversed(others), *reversed(ours)]
    references = {work: row for row in last if row.case.label == REFERENCE for work in _works(row.case)}
    known = ((row, [references[work] for work in _works(row.case) if work in references]) for row in rows)
    relatives = ((row, _relative(row, found[0] if found else None)) for row, found in known)
    return [dataclasses.replace(row, relative=ratio, relative_absent=why) for row, (ratio, why) in relatives]


def _works(case: Case) -> list[tuple[object, ...]]:
    """What *case* does whatever its strategy, which several cases may do alike."""
    return [(but, case.work(but)) for but in _BUT]


def comparable(cases: Sequence[CaseSummary]) -> list[list[CaseSummary]]:
    """Cases that may be compared, in groups by what they train on how many devices, fewest devices first."""
    groups = grouped((row for row in cases if row.comparable), lambda row: row.case.work(CHOICES))
    return sorted(groups.values(), key=lambda rows: rows[0].case.world_size)


def ranked(rows: Sequence[CaseSummary], column: str, *, reverse: bool = False) -> list[CaseSummary]:
    """*rows* that have a number of *column*, the lowest first, or in *reverse* the highest."""
    known = [row for row in rows if column in row.values]
    return sorted(known, key=lambda row: row.values[column].value, reverse=reverse)


def trials_of(records: Sequence[Record], column: str) -> dict[str, list[Record]]:
    """Measured trials with a finite number of *column* by case id, in the order of the rounds."""
    measured = [record for record in records if record.status is Status.MEASURED]
    known = [record for record in measured if numbers([record.values.get(column)])]
    return grouped(sorted(known, key=lambda record: record.round), lambda record: record.case_id)


def _unknown(case: Case, info: RunInfo, damaged: Damaged | None) -> CaseSummary:
    """Summary of a case without a record, and with that trial, if any, that can't be read."""
    if damaged:
        return CaseSummary(case, DAMAGED, damaged.problem, 0, 0, relative_absent=damaged.problem)
    asked = info.suite.get(MEASURE, {}).get("trials") != 0
    word, reason = (PENDING, "not run yet") if asked else (UNMEASURED, "measure.trials = 0")
    return CaseSummary(case, word, reason, 0, 0, relative_absent=reason)


def _summary(case: Case, records: list[Record]) -> CaseSummary:
    good = [record for record in records if record.status is Status.MEASURED]
    bad = [record for record in records if record.status is not Status.MEASURED]
    worst = min(bad, key=lambda record: record.status in _UNINFORMATIVE, default=None)
    row = CaseSummary(case, Status.MEASURED, "", len(good), len(bad), columns=_columns(records))
    if worst:
        row = dataclasses.replace(
            row,
            status=worst.status,
            worst=worst.status,
            reason=worst.reason,
            failure=worst.failure,
            log=_log(worst),
        )
    return _with_numbers(row, good) if good else row


def _with_numbers(row: CaseSummary, good: list[Record]) -> CaseSummary:
    reason = f"{row.failed} of {row.trials + row.failed} trials failed: {row.reason}" if row.failed else ""
    sound = [record for record in good if not record.degraded]
    counted = sound or good
    values = _estimates(counted, row.columns)
    return dataclasses.replace(
        row,
        status=Status.MEASURED,
        reason=reason,
        degraded_trials=len(good) - len(sound),
        degraded="" if sound else good[0].degraded,
        values=values,
        absent={name: _why_absent(counted, name) for name in row.columns if name not in values},
        losses=losses_of(counted[0]),
        detail=counted[0],
        unsteady=unsteady(good),
    )


def _columns(records: list[Record]) -> dict[str, dict[str, Any]]:
    """Columns of all *records*; a foreign record may lack parts of a description, or all."""
    columns: dict[str, dict[str, Any]] = {}
    for record in records:
        for name in (*record.columns, *record.values):
            columns.setdefault(name, _UNKNOWN_COLUMN | record.columns.get(name, {}))
    return columns


def _estimates(records: list[Record], columns: dict[str, dict[str, Any]]) -> dict[str, Estimate]:
    estimates = {}
    for name, column in columns.items():
        if values := numbers(record.values.get(name) for record in records):
            is_peak = (column["unit"], column["over_ranks"]) == ("B", "max")
            estimates[name] = Estimate(
                max(values) if is_peak else statistics.median(values),
                min(values),
                max(values),
                len(values),
                tuple(values),
                tuple(record.round for record in records if numbers([record.values.get(name)])),
                is_peak=is_peak,
            )
    return estimates


def _paced(rows: Sequence[CaseSummary]) -> list[CaseSummary]:
    """*rows* with the intervals of their paces; cases on the same number of devices share their noise."""
    found: dict[str, dict[str, Estimate]] = {row.case.id: dict(row.values) for row in rows}
    for same_size in grouped(rows, lambda row: row.case.world_size).values():
        for column in PACE:
            known = [row for row in same_size if row.positive(column)]
            made = intervals([row.positive(column) for row in known])
            for row, interval in zip(known, made, strict=True):
                estimate = row.values[column]
                found[row.case.id][column] = dataclasses.replace(
                    estimate, value=interval.value, interval=interval
                )
    return [dataclasses.replace(row, values=found[row.case.id]) for row in rows]


def _priced(rows: list[CaseSummary], cost: Cost | None) -> list[CaseSummary]:
    """*rows* with what they cost as further numbers, if it is known what a device costs."""
    if cost is None:
        return rows
    made = []
    for row in rows:
        found = prices(speed, row.case.world_size, cost) if (speed := row.values.get(THROUGHPUT)) else {}
        columns = {**row.columns, **described(cost)}
        made.append(dataclasses.replace(row, values={**row.values, **found}, columns=columns))
    return made


def _why_absent(records: list[Record], name: str) -> str:
    if any(name in record.values for record in records):
        return "not a finite number"
    return next((record.absent[name] for record in records if name in record.absent), "not measured")


def _log(record: Record) -> str:
    """Log of the rank that failed, relative to the run's folder."""
    if record.failure is None or record.failure.rank is None:
        return ""
    return log_file(Run(Path()).trial_folder(record.case, record.round), record.failure.rank).as_posix()


def _relative(row: CaseSummary, reference: CaseSummary | None) -> tuple[float | None, str]:
    if THROUGHPUT not in row.values:
        return None, row.absent.get(THROUGHPUT, f"{row.status}: no throughput")
    if row.degraded:
        return None, f"measured on a noisy machine: {row.degraded}"
    if reference is None:
        return None, f"the run has no {REFERENCE} at this world size that does the same work"
    if reference.degraded:
        return None, f"{REFERENCE} at this world size was measured on a noisy machine: {reference.degraded}"
    base = reference.values.get(THROUGHPUT)
    if base is None or not base.value:
        return None, f"{REFERENCE} at this world size has no throughput ({reference.status})"
    return row.values[THROUGHPUT].value / base.value, ""
