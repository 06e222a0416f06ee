"""One row a case: its status, and each of its numbers over trials with the spread."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from distbench.analysis.convergence import Convergence, convergences
from distbench.analysis.equivalence import DIFFERS, Verdict, verdicts
from distbench.analysis.settings import unsteady
from distbench.case import Case
from distbench.job import Check
from distbench.record import Failure, Record, Status, of_kind
from distbench.store import Run, RunInfo
from distbench.trial import log_file

PENDING = "pending"
"""What a case is called that has no record yet."""
UNMEASURED = "unmeasured"
"""What a case is called that nobody asked to measure (``measure.trials: 0``)."""
REFERENCE = "ddp"
"""Label of the strategy that throughput is told relative to."""
THROUGHPUT, MEMORY, COMMUNICATION, LOSS = "tokens_per_s", "memory_peak", "comm_bytes", "final_loss"

_UNKNOWN_COLUMN = {"unit": "", "better": None, "over_ranks": "", "doc": "Not described by its record."}
# a trial that was stopped says nothing about its case; any other ending does
_LEAST_TELLING = (Status.CANCELLED, Status.UNSUPPORTED)


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
    trials: tuple[float, ...] = ()
    """The number of each, in the order of the rounds."""

    @property
    def spread(self) -> float | None:
        """Half the range over the median, as a fraction; None from one trial."""
        if self.n < 2 or not self.value:
            return None
        return (self.high - self.low) / 2 / abs(self.value)

    def overlaps(self, other: Estimate) -> bool:
        """Return whether the ranges of the two share a point: no difference beyond the noise."""
        return self.low <= other.high and other.low <= self.high


# known by identity: a summary holds a whole record, and what is made of a run is cached by its summaries
@dataclass(frozen=True, eq=False)
class CaseSummary:
    """All that the records of one case say together."""

    case: Case
    status: str
    """A word of ``Status``, ``pending`` or ``unmeasured``."""
    reason: str
    trials: int
    """Trials that were measured."""
    failed: int
    """Trials that were not."""
    worst: str = ""
    """How the trial ended that ``reason`` tells of, a word of ``Status``; empty if none failed."""
    degraded_trials: int = 0
    """Measured trials on a disturbed machine. They count only where there is no sound one."""
    degraded: str = ""
    """Why the numbers may not be compared: no trial was sound, so they come from disturbed ones."""
    values: dict[str, Estimate] = field(default_factory=dict)
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Column name -> unit, better, over_ranks, doc, of every column that any trial describes."""
    absent: dict[str, str] = field(default_factory=dict)
    """Column name -> why ``values`` has no such number."""
    losses: list[float | None] = field(default_factory=list)
    """Loss of each step from the first warm-up step on, mean over ranks, of the first trial that
    counts; None where a rank gave none or it was not finite."""
    relative: float | None = None
    """Throughput relative to ddp at the same world size and otherwise the same work."""
    relative_absent: str = ""
    """Why ``relative`` is None."""
    detail: Record | None = None
    """The first trial that counts, for what is told of one trial rather than over trials."""
    unsteady: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Setting of the live engine that was not the same in all measured trials -> what it was."""
    convergence: Convergence | None = None
    """How it trains to a target; None: it was not asked to."""
    failure: Failure | None = None
    verdict: Verdict | None = None
    """Whether it is the same training as its reference; None: nobody asked."""
    log: str = ""
    """Log of the rank that ``failure`` blames, relative to the run's folder; empty if there is none."""

    @property
    def measured(self) -> bool:
        """Whether there are numbers."""
        return self.status == Status.MEASURED

    @property
    def differs(self) -> bool:
        """Whether it was found to be another training than its reference."""
        return self.verdict is not None and self.verdict.word == DIFFERS

    @property
    def comparable(self) -> bool:
        """Whether there are numbers that may be held against those of other cases."""
        return self.measured and not self.degraded and not self.differs


def summarise(info: RunInfo, records: Sequence[Record]) -> list[CaseSummary]:
    """Return a summary of each case of the run, in the order of the suite."""
    false_alarm = (info.suite.get("check") or {}).get("false_alarm", Check.false_alarm)
    verdict = verdicts(of_kind(records, "check"), false_alarm)
    by_case: dict[str, list[Record]] = {}
    trained = convergences(of_kind(records, "converge"))
    records = of_kind(records, "measure")
    for record in records:
        by_case.setdefault(record.case_id, []).append(record)
    cases = {item.case.id: item.case for item in info.cases}
    # a run folder may hold records of cases that run.json does not name: show them too
    cases |= {record.case_id: record.case for record in records if record.case_id not in cases}
    rows = [
        dataclasses.replace(
            _summary(case, by_case[case_id]) if case_id in by_case else _unknown(case, info),
            verdict=verdict.get(case_id),
            convergence=trained.get(case_id),
        )
        for case_id, case in cases.items()
    ]
    references = {_work(row.case): row for row in reversed(rows) if row.case.label == REFERENCE}
    return [_with_relative(row, references.get(_work(row.case))) for row in rows]


def losses_of(record: Record) -> list[float | None]:
    """Return the loss of each step of a trial, from its first warm-up step on, mean over ranks."""
    timed = record.samples.get("loss", [])
    none: list[float | None] = []
    # with no warm-up steps a record may have no list of them at all
    ranks = [[*warm, *rest] for warm, rest in zip_longest(record.warmup_losses, timed, fillvalue=none)]
    return [_mean(step) for step in zip_longest(*ranks)]


def to_json(info: RunInfo, cases: Sequence[CaseSummary]) -> dict[str, Any]:
    """Return what ``show --json`` prints: valid JSON, null for what is not known."""
    return {
        "run_id": info.run_id,
        "suite": info.suite_name,
        "state": info.state,
        "cases": [_case_json(row) for row in cases],
    }


def _case_json(row: CaseSummary) -> dict[str, Any]:
    failure = row.failure
    return {
        "case": row.case.name,
        "case_id": row.case.id,
        "strategy": row.case.label,
        "label": row.case.label,
        "world_size": row.case.world_size,
        "status": row.status,
        "reason": row.reason,
        "trials": row.trials,
        "failed_trials": row.failed,
        "degraded_trials": row.degraded_trials,
        "degraded": row.degraded,
        "relative_to_ddp": row.relative,
        "relative_absent": row.relative_absent,
        "values": {name: _estimate_json(row, name) for name in row.values},
        "absent": row.absent,
        "convergence": _convergence_json(row.convergence),
        "equivalence": _verdict_json(row.verdict),
        "failure": {"rank": failure.rank, "phase": failure.phase, "log": row.log} if failure else None,
    }


def _convergence_json(found: Convergence | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "verdict": found.word,
        "why": found.why,
        "merit": dataclasses.asdict(found.merit),
        "trainings": len(found.group.trainings),
        "steps_to_target": found.group.to_target("step"),
        "samples_to_target": found.group.to_target("samples"),
        "seconds_to_target": found.group.to_target("seconds"),
        "final": found.group.finals,
        "steps": dataclasses.asdict(found.steps) if found.steps else None,
        "at_the_end": dataclasses.asdict(found.final) if found.final else None,
        "findings": [dict(row) for row in found.group.findings],
    }


def _verdict_json(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {"verdict": verdict.word, "arms": [_finite(dataclasses.asdict(arm)) for arm in verdict.arms]}


def _finite(data: Any) -> Any:
    """Return *data* with null for what is infinitely far: JSON can't say it."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data


def _estimate_json(row: CaseSummary, name: str) -> dict[str, Any]:
    column = row.columns[name]
    return {**dataclasses.asdict(row.values[name]), "unit": column["unit"], "better": column["better"]}


def _unknown(case: Case, info: RunInfo) -> CaseSummary:
    asked = info.suite.get("measure", {}).get("trials") != 0
    word, reason = (PENDING, "not run yet") if asked else (UNMEASURED, "measure.trials = 0")
    return CaseSummary(case, word, reason, 0, 0, relative_absent=reason)


def _summary(case: Case, records: list[Record]) -> CaseSummary:
    good = [record for record in records if record.status is Status.MEASURED]
    bad = [record for record in records if record.status is not Status.MEASURED]
    worst = min(bad, key=lambda record: record.status in _LEAST_TELLING, default=None)
    row = CaseSummary(
        case=case,
        status=Status.MEASURED if worst is None or good else worst.status,
        reason="" if worst is None else worst.reason,
        worst="" if worst is None else worst.status,
        trials=len(good),
        failed=len(bad),
        columns=_columns(records),
        failure=worst.failure if worst else None,
        log=_log(worst) if worst else "",
    )
    return _with_numbers(row, good) if good else row


def _with_numbers(row: CaseSummary, good: list[Record]) -> CaseSummary:
    reason = f"{row.failed} of {row.trials + row.failed} trials failed: {row.reason}" if row.failed else ""
    sound = [record for record in good if not record.degraded]
    counted = sound or good
    values = _estimates(counted, list(row.columns))
    return dataclasses.replace(
        row,
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
    """Return the columns of all *records*; a foreign record may lack parts of a description, or all."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        for name in (*record.columns, *record.values):
            found.setdefault(name, _UNKNOWN_COLUMN | record.columns.get(name, {}))
    return found


def _estimates(records: list[Record], names: list[str]) -> dict[str, Estimate]:
    found = {}
    for name in names:
        values = [v for record in records if (v := record.values.get(name)) is not None and math.isfinite(v)]
        if values:
            middle = statistics.median(values)
            found[name] = Estimate(middle, min(values), max(values), len(values), tuple(values))
    return found


def _why_absent(records: list[Record], name: str) -> str:
    if any(name in record.values for record in records):
        return "not a finite number"
    return next((record.absent[name] for record in records if name in record.absent), "not measured")


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return math.fsum(known) / len(known) if len(known) == len(values) else None


def _log(record: Record) -> str:
    """Return where the log of the rank that failed lies, relative to the run's folder."""
    if record.failure is None or record.failure.rank is None:
        return ""
    return log_file(Run(Path()).trial_folder(record.case, record.round), record.failure.rank).as_posix()


def _with_relative(row: CaseSummary, reference: CaseSummary | None) -> CaseSummary:
    ratio, why = _relative(row, reference)
    return dataclasses.replace(row, relative=ratio, relative_absent=why)


def _relative(row: CaseSummary, reference: CaseSummary | None) -> tuple[float | None, str]:
    if THROUGHPUT not in row.values:
        return None, row.absent.get(THROUGHPUT, f"{row.status}: no throughput")
    if row.degraded:
        return None, f"disturbed while measured: {row.degraded}"
    if reference is None:
        return None, f"the run has no {REFERENCE} at this world size that does the same work"
    if reference.degraded:
        return None, f"{REFERENCE} at this world size was disturbed while measured: {reference.degraded}"
    base = reference.values.get(THROUGHPUT)
    if base is None or not base.value:
        return None, f"{REFERENCE} at this world size has no throughput ({reference.status})"
    return row.values[THROUGHPUT].value / base.value, ""


def _work(case: Case) -> str:
    """Return what two cases share that differ in nothing but the strategy."""
    work = {key: value for key, value in case.to_json().items() if key not in ("name", "label", "strategy")}
    return repr(work)
