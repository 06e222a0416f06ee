"""One row a case: its status, and each of its numbers over trials with the spread."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from distbench.case import Case
from distbench.record import Failure, Record, Status
from distbench.store import RunInfo

PENDING = "pending"
"""What a case is called that has no record yet."""
THROUGHPUT, MEMORY, COMMUNICATION, LOSS = "tokens_per_s", "memory_peak", "comm_bytes", "final_loss"


@dataclass(frozen=True)
class Estimate:
    """A number over the trials of a case. The trial is the sample, never the step."""

    value: float
    """Median over trials."""
    low: float
    """Smallest trial."""
    high: float
    """Largest trial."""
    n: int
    """Trials."""

    @property
    def spread(self) -> float | None:
        """Half the range over the median, as a fraction; None from one trial."""
        if self.n < 2 or not self.value:
            return None
        return (self.high - self.low) / 2 / abs(self.value)

    def overlaps(self, other: Estimate) -> bool:
        """Return whether the ranges of the two share a point: no difference beyond the noise."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class CaseSummary:
    """All that the records of one case say together."""

    case: Case
    status: str
    """A word of ``Status``, or ``pending``."""
    reason: str
    trials: int
    """Trials that were measured."""
    failed: int
    """Trials that were not."""
    values: dict[str, Estimate] = field(default_factory=dict)
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    """Loss of each step from the first warm-up step on, mean over ranks, of the first trial."""
    relative: float | None = None
    """Throughput relative to ddp at the same world size and otherwise the same work."""
    failure: Failure | None = None
    folder: str = ""
    """Folder of the trial that ``failure`` is about, inside the run."""

    @property
    def measured(self) -> bool:
        """Whether there are numbers."""
        return self.status == Status.MEASURED


def summarise(info: RunInfo, records: Sequence[Record]) -> list[CaseSummary]:
    """Return a summary of each case of the run, in the order of the suite."""
    by_case: dict[str, list[Record]] = {}
    for record in records:
        by_case.setdefault(record.case_id, []).append(record)
    cases = {item.case.id: item.case for item in info.cases}
    # a run folder may hold records of cases that run.json does not name: show them too
    cases |= {record.case_id: record.case for record in records if record.case_id not in cases}
    rows = [_summary(case, by_case.get(case_id, [])) for case_id, case in cases.items()]
    return [_with_relative(row, rows) for row in rows]


def to_json(info: RunInfo, cases: Sequence[CaseSummary]) -> dict[str, Any]:
    """Return what ``show --json`` prints: valid JSON, null for what is not known."""
    return {
        "run_id": info.run_id,
        "suite": info.suite_name,
        "state": info.state,
        "cases": [
            {
                "case": row.case.name,
                "case_id": row.case.id,
                "strategy": row.case.label,
                "world_size": row.case.world_size,
                "status": row.status,
                "reason": row.reason,
                "trials": row.trials,
                "failed_trials": row.failed,
                "relative_to_ddp": row.relative,
                "values": {name: _estimate_json(row, name) for name in row.values},
                "absent": row.absent,
            }
            for row in cases
        ],
    }


def _estimate_json(row: CaseSummary, name: str) -> dict[str, Any]:
    estimate, column = row.values[name], row.columns.get(name, {})
    return {
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "n": estimate.n,
        "unit": column.get("unit", ""),
        "better": column.get("better"),
    }


def _summary(case: Case, records: list[Record]) -> CaseSummary:
    if not records:
        return CaseSummary(case, PENDING, "not run yet", 0, 0)
    good = [record for record in records if record.status is Status.MEASURED]
    bad = [record for record in records if record.status is not Status.MEASURED]
    if not good:
        first = bad[0]
        return CaseSummary(
            case,
            first.status,
            first.reason,
            0,
            len(bad),
            failure=first.failure,
            columns=first.columns,
            folder=str(first.round),
        )
    return CaseSummary(
        case=case,
        status=Status.MEASURED,
        reason=f"{len(bad)} of {len(records)} trials failed: {bad[0].reason}" if bad else "",
        trials=len(good),
        failed=len(bad),
        values=_estimates(good),
        columns=good[0].columns,
        absent=good[0].absent,
        losses=_losses(good[0]),
        failure=bad[0].failure if bad else None,
        folder=str(bad[0].round) if bad else "",
    )


def _estimates(records: list[Record]) -> dict[str, Estimate]:
    names = [name for name in records[0].columns if any(name in record.values for record in records)]
    found = {}
    for name in names:
        values = [v for record in records if (v := record.values.get(name)) is not None and math.isfinite(v)]
        if values:
            found[name] = Estimate(statistics.median(values), min(values), max(values), len(values))
    return found


def _losses(record: Record) -> list[float]:
    timed = record.samples.get("loss", [])
    ranks = [[*warm, *rest] for warm, rest in zip(record.warmup_losses, timed, strict=False)]
    steps = [[value for value in step if value is not None] for step in zip(*ranks, strict=False)]
    return [math.fsum(step) / len(step) for step in steps if step]


def _with_relative(row: CaseSummary, rows: Sequence[CaseSummary]) -> CaseSummary:
    reference = next((r for r in rows if r.case.label == "ddp" and _same_work(r.case, row.case)), None)
    if reference is None or THROUGHPUT not in row.values or THROUGHPUT not in reference.values:
        return row
    ratio = row.values[THROUGHPUT].value / reference.values[THROUGHPUT].value
    return dataclasses.replace(row, relative=ratio)


def _same_work(a: Case, b: Case) -> bool:
    """Return whether two cases differ in nothing but the strategy."""
    shared = {field.name for field in dataclasses.fields(Case)} - {"name", "label", "strategy"}
    return all(getattr(a, name) == getattr(b, name) for name in shared)
