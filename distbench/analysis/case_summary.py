"""The summary of a case over its trials, and groups of such summaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from distbench.analysis.estimate import Estimate
from distbench.analysis.job_results import Gravity, Verdict
from distbench.analysis.losses.case_losses import finite_values
from distbench.analysis.settings import design_difference
from distbench.analysis.verdicts import is_confirmed
from distbench.core.case import TUNABLE_FIELDS, Case
from distbench.core.grouping import group_by
from distbench.record import Failure, Record, Status
from distbench.strategies.base import SPEED_BASELINE
from distbench.strategies.description import IntendedDifference

T = TypeVar("T")

PENDING = "pending"
"""Status of a case that has no record yet."""
DAMAGED = "damaged"
"""Status of a case whose trials are all unreadable because files are damaged."""
UNMEASURED = "unmeasured"
"""Status of a case that was not to be measured (``measure.trials: 0``)."""
NOT_MEASURED = "not measured"
"""Reason for a column of which no trial says more."""
REFERENCE_LABEL = SPEED_BASELINE
"""Label of the strategy that other throughputs are divided by."""
THROUGHPUT = "tokens_per_s"
MEMORY = "memory_peak"
COMMUNICATION = "comm_bytes"
LOSS = "final_loss"
EXACT_COLUMNS = (MEMORY, COMMUNICATION, "comm_wire_bytes", "comm_calls", LOSS, "flops_per_sample")
"""Columns that other work on the machine does not change."""
SPEED_COLUMNS = (
    THROUGHPUT,
    "tokens_per_s_per_device",
    "samples_per_s",
    "step_s",
    "mfu",
    "hfu",
    "energy_per_token",
)
"""Columns that share the noise of step timing; their intervals decide whether cases differ."""


# compared by identity: a summary holds a whole record, and results of a run are cached by its summaries
@dataclass(frozen=True, eq=False)
class CaseSummary:
    """Summary of all records of one case."""

    case: Case
    status: str
    """A word of ``Status``, ``pending``, ``damaged`` or ``unmeasured``."""
    reason: str
    trials: int
    """Number of measured trials."""
    failed: int
    """Number of trials that were not measured."""
    failure_status: str = ""
    """Outcome of the trial that ``reason`` describes, a word of ``Status``; empty if none failed."""
    degraded_trials: int = 0
    """Measured trials on a noisy machine; used only if there is no clean one."""
    degraded: str = ""
    """Reason why the numbers may not be compared: all trials ran on a noisy machine."""
    values: dict[str, Estimate] = field(default_factory=dict)
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Column name -> unit, better, over_ranks, doc, for every column that any trial describes."""
    absence_reasons: dict[str, str] = field(default_factory=dict)
    """Column name -> reason why ``values`` has no such number."""
    losses: list[float | None] = field(default_factory=list)
    """Loss of each step from the first warm-up step on, mean over ranks, of the first usable
    trial; None where a rank had none or it was not finite."""
    relative_throughput: float | None = None
    """Throughput relative to ddp at the same world size with otherwise the same work."""
    relative_absence: str = ""
    """Reason why ``relative_throughput`` is None."""
    representative_trial: Record | None = None
    """First usable trial, the source of everything that is shown for a single trial."""
    varying_settings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Setting of the live engine that differs between measured trials -> its values."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """Kind of job -> its verdict on the case; only the requested kinds."""
    failure: Failure | None = None
    log: str = ""
    """Log of the rank that caused ``failure``, relative to the run's folder; empty if there is none."""

    @property
    def measured(self) -> bool:
        """True if there are numbers."""
        return self.status == Status.MEASURED

    @property
    def outcome(self) -> str:
        """``status``, or ``differs`` if a verdict found a different training."""
        return "differs" if self.differs else self.status

    @property
    def differs(self) -> bool:
        """True if a verdict found a different training than the reference."""
        return any(verdict.invalidates for verdict in self.verdicts.values())

    @property
    def unproven_design(self) -> IntendedDifference | None:
        """Intended change of the training; None if there is none, or if it was shown to train as well."""
        return (
            None if is_confirmed(self.verdicts) else design_difference(self.case, self.representative_trial)
        )

    @property
    def comparable(self) -> bool:
        """True if its numbers may be compared with those of other cases."""
        return self.measured and not self.degraded and not self.differs

    def positive_trials(self, column: str) -> dict[int, float]:
        """Trials of a column by round, for use in ratios; empty if any value is not above 0."""
        estimate = self.values.get(column)
        if estimate is None or min(estimate.trials, default=0.0) <= 0:
            return {}
        return dict(zip(estimate.rounds, estimate.trials, strict=True))

    def verdicts_of(self, gravity: Gravity) -> list[Verdict]:
        """Verdicts of *gravity*, in the order of kinds."""
        return [verdict for verdict in self.verdicts.values() if verdict.gravity == gravity]

    def evidence(self, kind: type[T]) -> T | None:
        """Evidence of type *kind* behind a verdict; None if no verdict has any."""
        details = (verdict.detail for verdict in self.verdicts.values())
        return next((detail for detail in details if isinstance(detail, kind)), None)


def comparable_groups(cases: Sequence[CaseSummary], *, noisy: bool = False) -> list[list[CaseSummary]]:
    """Group cases that may be compared by their work and number of devices, fewest devices first.

    Args:
        noisy: Include cases measured on a noisy machine, for numbers that noise doesn't change.
    """
    fit = [row for row in cases if row.comparable or (noisy and row.measured and not row.differs)]
    groups = group_by(fit, lambda row: row.case.work_key(TUNABLE_FIELDS))
    return sorted(groups.values(), key=lambda rows: rows[0].case.world_size)


def sorted_by_value(rows: Sequence[CaseSummary], column: str, *, reverse: bool = False) -> list[CaseSummary]:
    """*rows* that have a value of *column*, lowest first; with *reverse*, highest first."""
    known = [row for row in rows if column in row.values]
    return sorted(known, key=lambda row: row.values[column].value, reverse=reverse)


def trials_with(records: Sequence[Record], column: str) -> dict[str, list[Record]]:
    """Measured trials with a finite value of *column* by case id, in the order of the rounds."""
    measured = [record for record in records if record.status is Status.MEASURED]
    known = [record for record in measured if finite_values([record.values.get(column)])]
    return group_by(sorted(known, key=lambda record: record.round), lambda record: record.case_id)
