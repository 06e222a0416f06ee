"""Launches that failed, counted by arm: a candidate that crashes now and then is a finding of its own.

A trial that fails is launched once more, since a single failure may be the machine's. So a change that
crashes every fifth launch would mostly get through, with nothing said, if only the last record counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from distbench.analysis.statistics.probability import fisher, holm
from distbench.core.serialization import decoded
from distbench.core.text import one_line
from distbench.gate.verdicts import Finding
from distbench.record import Record, read_json
from distbench.record.run_folder import write_json

CHANCE = 0.05
"""Chance that a candidate as reliable as its baseline is called less reliable in some case, and likewise in
all cases together."""
SUSPICIOUS = 2
"""Launches that fail in the candidate beyond those in the baseline before a second series looks again."""


@dataclass
class Launches:
    """Launches of one case in one arm."""

    worked: int = 0
    failed: list[str] = field(default_factory=list)
    """How each that failed ended."""

    @property
    def total(self) -> int:
        """All launches."""
        return self.worked + len(self.failed)

    def __add__(self, other: Launches) -> Launches:
        return Launches(self.worked + other.worked, [*self.failed, *other.failed])


Arms = tuple[Launches, Launches]
"""Launches of the baseline and of the candidate."""


def is_suspicious(arms: Arms) -> bool:
    """Whether more launches are worth their time: the candidate failed more often, perhaps by chance."""
    return len(arms[1].failed) - len(arms[0].failed) >= SUSPICIOUS


def findings(cases: Mapping[str, Arms]) -> dict[str, Finding]:
    """Findings on the launches of each of *cases* that had any that failed.

    The candidate is less reliable in a case if that case shows it, after Holm's (1979) correction for their
    number, or if all cases together do.
    """
    of_case = {name: _chance(arms) for name, arms in cases.items()}
    both = tuple(sum((arms[side] for arms in cases.values()), Launches()) for side in (0, 1))
    together = _chance((both[0], both[1])) <= CHANCE
    adjusted = dict(zip(of_case, holm([*of_case.values()]), strict=True))
    return {
        name: _finding(
            arms, of_case[name], is_worse=adjusted[name] <= CHANCE or (together and _is_worse(arms))
        )
        for name, arms in cases.items()
        if arms[0].failed or arms[1].failed
    }


def _chance(arms: Arms) -> float:
    before, after = arms
    return fisher(len(after.failed), after.total, len(before.failed), before.total)


def _is_worse(arms: Arms) -> bool:
    return len(arms[1].failed) * arms[0].total > len(arms[0].failed) * arms[1].total


def _finding(arms: Arms, chance: float, *, is_worse: bool) -> Finding:
    counts = (
        f"{len(arms[1].failed)} of {arms[1].total} launches failed in the candidate and "
        f"{len(arms[0].failed)} of {arms[0].total} in the baseline"
    )
    last = (arms[1].failed or arms[0].failed)[-1]
    odds = f"p = {chance:.2g}, Fisher's exact test"
    if is_worse:
        return Finding("trial", "broken", f"less reliable: {counts} ({odds}): {last}")
    meaning = f", which may be chance ({odds})" if arms[1].failed else ""
    return Finding("trial", "pass", f"{counts}{meaning}; each was launched once more: {last}", notable=True)


@dataclass(frozen=True)
class Entry:
    """A launch that failed."""

    arm: int
    """0: baseline; 1: candidate."""
    case_id: str
    round: int
    started: str
    how: str

    @property
    def key(self) -> tuple[int, str, int]:
        """Which trial it was a launch of."""
        return self.arm, self.case_id, self.round


@dataclass
class FailureLog:
    """Launches that failed, kept in a file, for the record of a second try replaces that of the first."""

    file: Path | None = None
    """None: kept in memory only."""
    _entries: list[Entry] = field(default_factory=list, init=False)
    _taken: list[Entry] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.file and self.file.exists():
            self._entries = decoded(list[Entry], read_json(self.file), str(self.file))

    def note(self, arm: int, record: Record) -> None:
        """Keep that *record* of *arm* (0: baseline) is of a launch that failed, once."""
        entry = Entry(arm, record.case_id, record.round, record.started, _how(record))
        if entry not in self._entries:
            self._entries.append(entry)
            if self.file:
                write_json(self.file, [dataclasses.asdict(each) for each in self._entries])

    def take(self, arm: int, case_id: str, round_: int) -> list[str]:
        """How each failed launch of a trial ended, given once: the warm-ups of both series share a round."""
        key = arm, case_id, round_
        taken = [entry for entry in self._entries if entry.key == key and entry not in self._taken]
        self._taken += taken
        return [entry.how for entry in taken]


def _how(record: Record) -> str:
    return f"{record.status}: {one_line(record.reason)}"
