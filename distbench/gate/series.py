"""A series: pairs of trials of two arms, next to each other in time, until they suffice for a verdict.

Cases of one strategy at several world sizes run as a block, A1 A2 A4 B4 B2 B1, and next time in reverse,
B1 B2 B4 A4 A2 A1. So the pairs of every case alternate A B | B A, which cancels a drift of the machine,
also in every ratio of N devices to one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, product
from typing import NamedTuple, Protocol

from distbench.analysis.scaling import case_families, case_series
from distbench.core.case import Case
from distbench.gate.code_changes import imports_same_code
from distbench.gate.launch_failures import FailureLog, LaunchCounts
from distbench.gate.metric_rules import expected_pairs, is_decided, paired_rules
from distbench.gate.pairs import CasePairs
from distbench.gate.sequential_test import PairRule
from distbench.plan import PlannedTrial
from distbench.record import WARMUP_ROUND, Record, Status
from distbench.run import AllocationTimeLimit, Observer, StopRequest
from distbench.suite.gate import GateRules

_BASELINE, _CANDIDATE = 0, 1
_PAIRS_PER_PARENT = 3
"""Pairs whose trials are forked from the same fork servers; then both arms start new ones. The effect of a
parent's memory layout and placement on all of its trials would otherwise be in the mean and not in the
spread.
"""


class CaseSlot(NamedTuple):
    """One case in both arms."""

    baseline: Case
    candidate: Case


@dataclass
class CaseTrack:
    """Trials of one slot so far."""

    slot: CaseSlot
    single_device: CaseTrack | None = None
    """Track of the same case on one device, if the slot is part of a scaling series."""
    pairs: list[tuple[Record, Record]] = field(default_factory=list)
    failure: tuple[Record | None, Record | None] | None = None
    """Records that ended the track: that of the arm that failed twice."""
    unchanged: str = ""
    """Reason why one pair is enough: the ranks of both arms run the same code; empty: they may not."""
    seconds: float = 0.0
    longest_trial_s: float | None = None
    """Seconds of its longest trial; None: it has none yet."""
    launches: tuple[LaunchCounts, LaunchCounts] = field(
        default_factory=lambda: (LaunchCounts(), LaunchCounts())
    )
    """Launches of the baseline and of the candidate, warm-up included."""

    def case_pairs(self) -> CasePairs:
        """Its pairs, as the rules judge them."""
        per_pair = self.seconds / 60 / max(1, len(self.pairs))
        return CasePairs(self.pairs, self.single_device.pairs if self.single_device else (), per_pair)


@dataclass
class GateTimer:
    """Time limit of a gate."""

    minutes: float | None
    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed_minutes(self) -> float:
        """Minutes since the gate started."""
        return (time.monotonic() - self.started) / 60

    @property
    def has_expired(self) -> bool:
        """True if no further block may start."""
        return self.minutes is not None and self.elapsed_minutes >= self.minutes


def make_tracks(slots: Sequence[CaseSlot], *, efficiency: bool) -> list[list[CaseTrack]]:
    """Tracks of *slots* in blocks: the slots of a strategy together if its scaling is gated."""
    tracks = {slot.candidate.id: CaseTrack(slot) for slot in slots}
    if not efficiency:
        return [[track] for track in tracks.values()]
    cases = [slot.candidate for slot in slots]
    for _, (base, *others) in case_series(cases):
        for case in others:
            # of a strong and a weak series that share a case, the first decides: strong scaling
            tracks[case.id].single_device = tracks[case.id].single_device or tracks[base.id]
    bases = {track.single_device.slot.candidate.id for track in tracks.values() if track.single_device}
    blocks = []
    for family in case_families(cases):
        of_series = [case for case in family if tracks[case.id].single_device or case.id in bases]
        blocks += [[tracks[case.id] for case in sorted(of_series, key=lambda case: case.world_size)]]
        blocks += [[tracks[case.id]] for case in family if case not in of_series]
    return [block for block in blocks if block]


class TrialBench(Protocol):
    """Runs the trials of one arm; each is on disk when ``run`` returns, if it is kept."""

    def stored_record(self, task: PlannedTrial) -> Record | None:
        """Record of *task* from an earlier session; None: it has none."""

    def run(self, task: PlannedTrial, *, keep: bool = True) -> Record:
        """Run *task*; return its record."""

    def store(self, task: PlannedTrial, record: Record) -> Record:
        """Store *record* of *task*; return what is stored."""

    def restart_fork_servers(self) -> None:
        """Start the next trial from new processes."""


@dataclass
class PairSeries:
    """Runs blocks on two benches, baseline and candidate, until each has ended."""

    benches: tuple[TrialBench, TrialBench]
    gate: GateRules
    observer: Observer
    stop: StopRequest
    timer: GateTimer
    failures: FailureLog = field(default_factory=FailureLog)
    deadline: AllocationTimeLimit = field(default_factory=AllocationTimeLimit)
    unread_changes: str | None = None
    """The differences of the arms if no rank reads them but by importing them; otherwise None."""
    _blocks: list[list[CaseTrack]] = field(default_factory=list, init=False)
    _done: int = field(default=0, init=False)
    _spent_s: float = field(default=0.0, init=False)

    def run(
        self, blocks: list[list[CaseTrack]], *, first_round: int = 0, candidate_first: bool = False
    ) -> None:
        """Fill the tracks of *blocks*.

        Args:
            first_round: Number of each case's first trial in the folder of its run.
            candidate_first: True if the candidate starts the first block.
        """
        self._blocks, self._done, self._spent_s = blocks, 0, 0.0
        for block in blocks:
            self._warm_up(block)
        for round_ in count(first_round):
            blocks = [block for block in blocks if self._needs_pairs(block)]
            if not blocks:
                return
            for block in blocks:
                if self.stop.is_set or self.timer.has_expired:
                    return
                self._run_block(block, round_, candidate_first=candidate_first)
            candidate_first = not candidate_first
            if (round_ - first_round + 1) % _PAIRS_PER_PARENT == 0:
                for runner in self.benches:
                    runner.restart_fork_servers()

    def _warm_up(self, block: list[CaseTrack]) -> None:
        """Make a trial of each arm, which pays for caches, clocks and autotuning.

        They are discarded, unless they show that both arms of all cases run the same code.
        """
        made: dict[int, list[Record]] = {id(track): [] for track in block}
        for track, arm in product(block, (_BASELINE, _CANDIDATE)):
            if not (track.failure or self._time_is_short(track)):
                made[id(track)].append(self._run_trial(track, arm, WARMUP_ROUND, keep=False))
        if self.unread_changes is None or not all(map(_is_same_code, made.values())):
            return
        for track in block:
            before, after = (
                runner.store(PlannedTrial(case, WARMUP_ROUND), record)
                for runner, case, record in zip(self.benches, track.slot, made[id(track)], strict=True)
            )
            track.pairs, track.unchanged = [(before, after)], self.unread_changes

    def _time_is_short(self, track: CaseTrack) -> bool:
        """True if too little time is left for another trial of *track*."""
        return self.deadline.should_stop(self.stop, self.observer, track.longest_trial_s)

    def _needs_pairs(self, block: list[CaseTrack]) -> bool:
        return any(not is_decided(track.case_pairs(), self._rules(track)) for track in _running(block))

    def _rules(self, track: CaseTrack) -> dict[str, PairRule]:
        case = track.slot.candidate
        return paired_rules(self.gate, self.gate.tolerances_for(case.label, case.name))

    def _expected_trials(self, block: list[CaseTrack]) -> int:
        """Total trials that *block* should need, given its pairs so far."""
        expected = [expected_pairs(track.case_pairs(), self._rules(track)) for track in _running(block)]
        pairs = max(expected, default=0)
        return 2 * len(block) * (1 + pairs)

    def _run_block(self, block: list[CaseTrack], round_: int, *, candidate_first: bool) -> None:
        alive = _running(block)
        arms = (_CANDIDATE, _BASELINE) if candidate_first else (_BASELINE, _CANDIDATE)
        # the arm that starts goes up through the world sizes, the other comes back down; every second
        # block swaps the arms
        order = [*((track, arms[0]) for track in alive), *((track, arms[1]) for track in reversed(alive))]
        records: dict[tuple[int, int], Record] = {}
        for track, arm in order:
            if self._time_is_short(track):
                return
            if not track.failure:
                records[id(track), arm] = self._run_trial(track, arm, round_)
        if self.stop.stop_now:
            return
        for track in _running(alive):
            # noisy trials count too: the arms alternate, so noise widens the interval without favouring
            # either; dropping trials by their looks could favour one
            track.pairs.append((records[id(track), _BASELINE], records[id(track), _CANDIDATE]))

    def _run_trial(self, track: CaseTrack, arm: int, round_: int, *, keep: bool = True) -> Record:
        task = PlannedTrial(track.slot[arm], round_)
        total = max(self._done + 1, sum(map(self._expected_trials, self._blocks)))
        left = self._spent_s / self._done * (total - self._done) if self._done else None
        self.observer.trial_started(task, self._done, total, left)
        began = time.monotonic()
        runner = self.benches[arm]
        record = (runner.stored_record(task) if keep else None) or runner.run(task, keep=keep)
        if record.status.is_failure and record.status is not Status.CANCELLED:
            self.failures.add(arm, record)
            # retry once: a single failure may be the machine's and not the code's
            record = runner.run(task, keep=keep)
        self._done += 1
        # a trial of an earlier session took its time there
        self._spent_s += max(time.monotonic() - began, record.wall_s)
        self._count_launch(track.launches[arm], arm, record)
        track.seconds += record.wall_s
        track.longest_trial_s = max(track.longest_trial_s or 0.0, record.wall_s)
        if record.status is not Status.MEASURED and record.status is not Status.CANCELLED:
            track.failure = (record, None) if arm == _BASELINE else (None, record)
        self.observer.trial_ended(record)
        return record

    def _count_launch(self, launches: LaunchCounts, arm: int, record: Record) -> None:
        """Count the launches of a trial, of which *record* is the last."""
        if record.status is Status.MEASURED:
            launches.succeeded += 1
        elif record.status is not Status.CANCELLED:
            self.failures.add(arm, record)
        launches.failures += self.failures.take_unreported(arm, record.case_id, record.round)


def _running(block: list[CaseTrack]) -> list[CaseTrack]:
    return [track for track in block if not (track.failure or track.unchanged)]


def _is_same_code(pair: list[Record]) -> bool:
    return len(pair) == 2 and imports_same_code(*pair)
