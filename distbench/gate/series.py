"""A series: pairs of trials of two arms, next to each other in time, until they suffice for a verdict.

Cases of one strategy at several world sizes run as a block, A1 A2 A4 B4 B2 B1, and next time in reverse,
B1 B2 B4 A4 A2 A1. So the pairs of every case alternate A B | B A, which cancels a drift of the machine,
also in every ratio of N devices to one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, count, product
from typing import NamedTuple

from distbench.analysis.scaling import families, series_of
from distbench.core.case import Case
from distbench.gate.launch_failures import FailureLog, Launches
from distbench.gate.metric_rules import Measured, has_ended, pairs_expected, rules
from distbench.gate.sequential_test import Rule
from distbench.plan import PlannedTrial
from distbench.record import WARM_UP, Record, Status
from distbench.run import Bench, Deadline, Observer, StopRequest
from distbench.suite.gate import GateRules

_BASELINE, _CANDIDATE = 0, 1
_OF_ONE_PARENT = 3
"""Pairs whose trials are forked from the same warm parents; then both arms start new ones. What a parent's
memory layout and placement add to all of its trials would otherwise be in the mean and not in the spread."""


class Slot(NamedTuple):
    """One case in both arms."""

    baseline: Case
    candidate: Case


@dataclass
class Track:
    """Trials of one slot so far."""

    slot: Slot
    base: Track | None = None
    """Track of the same case on one device, if the slot is part of a scaling series."""
    pairs: list[tuple[Record, Record]] = field(default_factory=list)
    failure: tuple[Record | None, Record | None] | None = None
    """Records that ended the track: that of the arm that failed twice."""
    seconds: float = 0.0
    longest: float | None = None
    """Seconds of its longest trial; None: it has none yet."""
    launches: tuple[Launches, Launches] = field(default_factory=lambda: (Launches(), Launches()))
    """Those of the baseline and of the candidate, warm-up included."""

    def measured(self) -> Measured:
        """Its pairs, as the rules judge them."""
        per_pair = self.seconds / 60 / max(1, len(self.pairs))
        return Measured(self.pairs, self.base.pairs if self.base else (), per_pair)


@dataclass
class Clock:
    """Time limit of a gate."""

    minutes: float | None
    started: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        """Minutes since the gate started."""
        return (time.monotonic() - self.started) / 60

    @property
    def is_over(self) -> bool:
        """Whether no further block may start."""
        return self.minutes is not None and self.spent >= self.minutes


def tracks_of(slots: Sequence[Slot], *, efficiency: bool) -> list[list[Track]]:
    """Tracks of *slots* in blocks: the slots of a strategy together if its scaling is gated."""
    tracks = {slot.candidate.id: Track(slot) for slot in slots}
    if not efficiency:
        return [[track] for track in tracks.values()]
    cases = [slot.candidate for slot in slots]
    for _, (base, *others) in series_of(cases):
        for case in others:
            # of a strong and a weak series that share a case, the first decides: strong scaling
            tracks[case.id].base = tracks[case.id].base or tracks[base.id]
    bases = {track.base.slot.candidate.id for track in tracks.values() if track.base}
    blocks = []
    for family in families(cases):
        of_series = [case for case in family if tracks[case.id].base or case.id in bases]
        blocks += [[tracks[case.id] for case in sorted(of_series, key=lambda case: case.world_size)]]
        blocks += [[tracks[case.id]] for case in family if case not in of_series]
    return [block for block in blocks if block]


@dataclass
class Series:
    """Runs blocks on two benches, baseline and candidate, until each has ended."""

    benches: tuple[Bench, Bench]
    gate: GateRules
    observer: Observer
    stop: StopRequest
    clock: Clock
    failures: FailureLog = field(default_factory=FailureLog)
    deadline: Deadline = field(default_factory=Deadline)
    _blocks: list[list[Track]] = field(default_factory=list, init=False)
    _done: int = field(default=0, init=False)
    _spent_s: float = field(default=0.0, init=False)

    def run(self, blocks: list[list[Track]], *, first_round: int = 0, candidate_first: bool = False) -> None:
        """Fill the tracks of *blocks*.

        Args:
            first_round: Number of each case's first trial in the folder of its run.
            candidate_first: Whether the candidate starts the first block.
        """
        self._blocks, self._done, self._spent_s = blocks, 0, 0.0
        for track, arm in product(chain(*blocks), (_BASELINE, _CANDIDATE)):
            # one trial of each arm is made and discarded: it pays for caches, clocks and autotuning
            if not (track.failure or self._ends_before(track)):
                self._trial(track, arm, WARM_UP, keep=False)
        for round_ in count(first_round):
            blocks = [block for block in blocks if self._is_open(block)]
            if not blocks:
                return
            for block in blocks:
                if self.stop.ends or self.clock.is_over:
                    return
                self._block(block, round_, candidate_first=candidate_first)
            candidate_first = not candidate_first
            if (round_ - first_round + 1) % _OF_ONE_PARENT == 0:
                for bench in self.benches:
                    bench.renew()

    def _ends_before(self, track: Track) -> bool:
        """Whether no trial of *track* is to be begun any more."""
        return self.deadline.ends(self.stop, self.observer, track.longest)

    def _is_open(self, block: list[Track]) -> bool:
        return any(not has_ended(track.measured(), self._rules(track)) for track in _alive(block))

    def _rules(self, track: Track) -> dict[str, Rule]:
        case = track.slot.candidate
        return rules(self.gate, self.gate.of(case.label, case.name))

    def _trials_of(self, block: list[Track]) -> int:
        """Total trials that *block* should need, given its pairs so far."""
        expected = [pairs_expected(track.measured(), self._rules(track)) for track in _alive(block)]
        pairs = max(expected, default=0)
        return 2 * len(block) * (1 + pairs)

    def _block(self, block: list[Track], round_: int, *, candidate_first: bool) -> None:
        alive = _alive(block)
        arms = (_CANDIDATE, _BASELINE) if candidate_first else (_BASELINE, _CANDIDATE)
        # the arm that starts goes up through the world sizes, the other comes back down; every second
        # block swaps the arms
        order = [*((track, arms[0]) for track in alive), *((track, arms[1]) for track in reversed(alive))]
        records: dict[tuple[int, int], Record] = {}
        for track, arm in order:
            if self._ends_before(track):
                return
            if not track.failure:
                records[id(track), arm] = self._trial(track, arm, round_)
        if self.stop.asked:
            return
        for track in _alive(alive):
            # noisy trials count too: the arms alternate, so noise widens the interval without favouring
            # either; dropping trials by their looks could favour one
            track.pairs.append((records[id(track), _BASELINE], records[id(track), _CANDIDATE]))

    def _trial(self, track: Track, arm: int, round_: int, *, keep: bool = True) -> Record:
        task = PlannedTrial(track.slot[arm], round_)
        total = max(self._done + 1, sum(map(self._trials_of, self._blocks)))
        left = self._spent_s / self._done * (total - self._done) if self._done else None
        self.observer.trial_started(task, self._done, total, left)
        began = time.monotonic()
        bench = self.benches[arm]
        record = (bench.found(task) if keep else None) or bench.make(task, keep=keep)
        if record.status.is_failure and record.status is not Status.CANCELLED:
            self.failures.note(arm, record)
            # retry once: a single failure may be the machine's and not the code's
            record = bench.make(task, keep=keep)
        self._done += 1
        # one that an earlier session made took its time there
        self._spent_s += max(time.monotonic() - began, record.wall_s)
        self._count(track.launches[arm], arm, record)
        track.seconds += record.wall_s
        track.longest = max(track.longest or 0.0, record.wall_s)
        if record.status is not Status.MEASURED and record.status is not Status.CANCELLED:
            track.failure = (record, None) if arm == _BASELINE else (None, record)
        self.observer.trial_ended(record)
        return record

    def _count(self, launches: Launches, arm: int, record: Record) -> None:
        """Count the launches of a trial, of which *record* is the last."""
        if record.status is Status.MEASURED:
            launches.worked += 1
        elif record.status is not Status.CANCELLED:
            self.failures.note(arm, record)
        launches.failed += self.failures.take(arm, record.case_id, record.round)


def _alive(block: list[Track]) -> list[Track]:
    return [track for track in block if not track.failure]
