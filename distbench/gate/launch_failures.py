"""Compare how often launches fail in each arm.

A trial that fails is launched once more, since a single failure may be the machine's. If only the last record
counted, a change that crashes every fifth launch would mostly pass unnoticed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from distbench.analysis.statistics.distributions import fisher_exact_tail, holm_adjusted
from distbench.core.serialization import decode
from distbench.core.text import one_line
from distbench.gate.verdicts import MetricFinding
from distbench.record import Record, read_json
from distbench.record.run_folder import write_json

ERROR_RATE = 0.05
"""Chance of a false alarm in some case, for a candidate as reliable as its baseline; the same again for all
cases together.
"""
SUSPICIOUS_EXCESS = 2
"""Failed launches of the candidate beyond those of the baseline that cause a second series."""


@dataclass
class LaunchCounts:
    """Launches of one case in one arm."""

    succeeded: int = 0
    failures: list[str] = field(default_factory=list)
    """Outcome of each failed launch."""

    @property
    def total(self) -> int:
        """Number of all launches."""
        return self.succeeded + len(self.failures)

    def __add__(self, other: LaunchCounts) -> LaunchCounts:
        return LaunchCounts(self.succeeded + other.succeeded, [*self.failures, *other.failures])


LaunchCountsByArm = tuple[LaunchCounts, LaunchCounts]
"""Launches of the baseline and of the candidate."""


def is_suspicious(arms: LaunchCountsByArm) -> bool:
    """True if more launches are worth their time: the candidate failed more often, perhaps by chance."""
    return len(arms[1].failures) - len(arms[0].failures) >= SUSPICIOUS_EXCESS


def launch_findings(cases: Mapping[str, LaunchCountsByArm]) -> dict[str, MetricFinding]:
    """Findings on the launches of each of *cases* with failed launches.

    The candidate is less reliable in a case if that case shows it, after Holm's (1979) correction for their
    number, or if all cases together do.
    """
    of_case = {name: _p_value(arms) for name, arms in cases.items()}
    both = tuple(sum((arms[side] for arms in cases.values()), LaunchCounts()) for side in (0, 1))
    together = _p_value((both[0], both[1])) <= ERROR_RATE
    adjusted = dict(zip(of_case, holm_adjusted([*of_case.values()]), strict=True))
    return {
        name: _finding(
            arms,
            of_case[name],
            is_worse=adjusted[name] <= ERROR_RATE or (together and _fails_more_often(arms)),
        )
        for name, arms in cases.items()
        if arms[0].failures or arms[1].failures
    }


def _p_value(arms: LaunchCountsByArm) -> float:
    before, after = arms
    return fisher_exact_tail(len(after.failures), after.total, len(before.failures), before.total)


def _fails_more_often(arms: LaunchCountsByArm) -> bool:
    return len(arms[1].failures) * arms[0].total > len(arms[0].failures) * arms[1].total


def _finding(arms: LaunchCountsByArm, chance: float, *, is_worse: bool) -> MetricFinding:
    counts = (
        f"{len(arms[1].failures)} of {arms[1].total} launches failed in the candidate and "
        f"{len(arms[0].failures)} of {arms[0].total} in the baseline"
    )
    last = (arms[1].failures or arms[0].failures)[-1]
    odds = f"p = {chance:.2g}, Fisher's exact test"
    if is_worse:
        return MetricFinding("trial", "broken", f"less reliable: {counts} ({odds}): {last}")
    meaning = f", which may be chance ({odds})" if arms[1].failures else ""
    return MetricFinding("trial", "pass", f"{counts}{meaning}; each was retried once: {last}", notable=True)


@dataclass(frozen=True)
class FailedLaunch:
    """A launch that failed."""

    arm: int
    """0: baseline; 1: candidate."""
    case_id: str
    round: int
    started: str
    how: str

    @property
    def key(self) -> tuple[int, str, int]:
        """The trial that it was a launch of."""
        return self.arm, self.case_id, self.round


@dataclass
class FailureLog:
    """Failed launches, stored in a file because the record of a second try replaces that of the first."""

    file: Path | None = None
    """None: kept in memory only."""
    _entries: list[FailedLaunch] = field(default_factory=list, init=False)
    _reported: list[FailedLaunch] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.file and self.file.exists():
            self._entries = decode(list[FailedLaunch], read_json(self.file), str(self.file))

    def add(self, arm: int, record: Record) -> None:
        """Add the failed launch of which *record* of *arm* (0: baseline) is, unless it is already known."""
        entry = FailedLaunch(arm, record.case_id, record.round, record.started, _ending(record))
        if entry not in self._entries:
            self._entries.append(entry)
            if self.file:
                write_json(self.file, [dataclasses.asdict(each) for each in self._entries])

    def take_unreported(self, arm: int, case_id: str, round_: int) -> list[str]:
        """Take the outcomes of a trial's failed launches, each only once.

        The warm-ups of both series share a round.
        """
        key = arm, case_id, round_
        taken = [entry for entry in self._entries if entry.key == key and entry not in self._reported]
        self._reported += taken
        return [entry.how for entry in taken]


def _ending(record: Record) -> str:
    return f"{record.status}: {one_line(record.reason)}"
