"""Launches that fail now and then: counted by arm, told, and a finding where chance is no excuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from distbench.gate import launch_failures
from distbench.gate.case_verdict import case_verdict
from distbench.gate.launch_failures import FailureLog, LaunchCounts
from distbench.gate.series import CaseSlot, CaseTrack, GateTimer, PairSeries, make_tracks
from distbench.gate.verdicts import MetricFinding
from distbench.plan import PlannedTrial
from distbench.record import Record
from distbench.run import Observer, StopRequest, TrialRunner
from distbench.suite.gate import GateRules, Tolerances
from support import records

CASE = records.case("ddp")
PAIRS = 10
RULES = GateRules(replace(Tolerances(), efficiency=None), min_pairs=PAIRS, max_pairs=PAIRS)


@dataclass
class PretendedBench:
    """Makes records at once; a launch crashes where *crashes* says so."""

    crashes: Callable[[], bool]
    stored: dict[int, Record] = field(default_factory=dict)

    def restart_fork_servers(self) -> None:
        """Nothing is kept that could be renewed."""

    def stored_record(self, task: PlannedTrial) -> Record | None:
        return self.stored.get(task.round)

    def run(self, task: PlannedTrial, *, keep: bool = True) -> Record:
        started = f"launch {np.random.default_rng().integers(1 << 60)}"
        if self.crashes():
            return replace(records.failed(task.case, round_=task.round), started=started)
        return records.measured(task.case, round_=task.round, step_s=1.0 + 1e-4 * (task.round % 3))


def never() -> bool:
    return False


def now_and_then(rate: float, seed: int) -> Callable[[], bool]:
    random = np.random.default_rng(seed)
    return lambda: bool(random.random() < rate)


def at(*launches: int) -> Callable[[], bool]:
    """Whether this launch, from 0 on and with the warm-up, is one of *launches*."""
    numbers = iter(range(1000))
    return lambda: next(numbers) in launches


def ran(
    candidate: Callable[[], bool], baseline: Callable[[], bool] = never, log: FailureLog | None = None
) -> CaseTrack:
    blocks = make_tracks([CaseSlot(CASE, CASE)], efficiency=False)
    benches = cast("tuple[TrialRunner, TrialRunner]", (PretendedBench(baseline), PretendedBench(candidate)))
    PairSeries(benches, RULES, Observer(), StopRequest(), GateTimer(None), log or FailureLog()).run(blocks)
    return blocks[0][0]


def told(track: CaseTrack) -> MetricFinding | None:
    return launch_failures.launch_findings({CASE.name: track.launches}).get(CASE.name)


def test_each_launch_is_counted_in_its_arm_the_warm_up_and_the_second_tries_too() -> None:
    track = ran(at(0, 3), at(5))
    assert [(arm.succeeded, len(arm.failures)) for arm in track.launches] == [(PAIRS + 1, 1), (PAIRS + 1, 2)]
    assert track.failure is None and len(track.pairs) == PAIRS


def test_a_crash_whose_second_try_works_is_told() -> None:
    """The audit's: 54 % of gates with a candidate that crashes in 10 % of its launches said nothing."""
    launches = told(ran(at(4)))
    assert launches is not None and launches.word == "pass" and launches.notable
    assert launches.said.startswith(
        "1 of 12 launches failed in the candidate and 0 of 11 in the baseline, which may be chance (p = 0.52"
    )
    assert "rank 1 in time: RuntimeError: no" in launches.said
    assert told(ran(never)) is None


def test_several_crashes_in_the_candidate_alone_break_it_although_each_second_try_works() -> None:
    track = ran(at(0, 3, 6, 9, 12, 15))
    verdict = case_verdict(track, None, ({}, {}), RULES, launches=told(track), confirms=True)
    assert verdict.word == "broken"
    assert verdict.said.startswith(
        "trial: less reliable: 6 of 17 launches failed in the candidate and 0 of 11 "
    )
    assert told(ran(at(0, 3, 6, 9, 12, 15), at(0, 3, 6, 9, 12, 15))).word == "pass"


def test_a_case_that_failed_twice_is_broken_once() -> None:
    track = ran(at(2, 3))
    verdict = case_verdict(track, None, ({}, {}), RULES, launches=told(track), confirms=True)
    assert [one.metric for one in verdict.findings if one.word == "broken"] == ["trial"]


def test_cases_that_each_fail_too_seldom_are_counted_together() -> None:
    cases = {str(i): (LaunchCounts(11), LaunchCounts(11, ["crashed: no"])) for i in range(8)}
    assert {one.word for one in launch_failures.launch_findings(cases).values()} == {"broken"}
    assert {one.word for one in launch_failures.launch_findings({"0": cases["0"]}).values()} == {"pass"}


@pytest.mark.parametrize(("others", "word"), [(1, "broken"), (9, "pass")])
def test_what_breaks_one_case_may_be_chance_in_one_of_ten(others: int, word: str) -> None:
    steady = {str(i): (LaunchCounts(11), LaunchCounts(11)) for i in range(others)}
    # as much the other way round, so that the cases together show nothing
    steady["0"] = LaunchCounts(6, ["crashed: no"] * 6), LaunchCounts(11)
    worse = LaunchCounts(11), LaunchCounts(6, ["crashed: no"] * 6)
    assert launch_failures.launch_findings({"worse": worse, **steady})["worse"].word == word


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3])
def test_arms_that_crash_alike_are_rarely_told_apart(rate: float) -> None:
    random = np.random.default_rng(4)
    wrong = 0
    for _ in range(300):
        counts = random.binomial(21, rate, size=(20, 2))
        cases = {
            str(i): (LaunchCounts(21 - a, ["crashed"] * a), LaunchCounts(21 - b, ["crashed"] * b))
            for i, (a, b) in enumerate(counts.tolist())
        }
        wrong += any(one.word == "broken" for one in launch_failures.launch_findings(cases).values())
    assert wrong / 300 <= 0.08


def test_a_candidate_that_crashes_in_every_third_launch_is_stopped() -> None:
    """Gates of one case with two series of ten pairs; where a second try fails too it is broken anyway."""
    stopped = 0
    for seed in range(40):
        track = ran(now_and_then(1 / 3, seed))
        if not track.failure and launch_failures.is_suspicious(track.launches):
            more = ran(now_and_then(1 / 3, seed + 1000))
            arms = [one + other for one, other in zip(track.launches, more.launches, strict=True)]
            found = launch_failures.launch_findings({CASE.name: (arms[0], arms[1])})[CASE.name]
            stopped += bool(more.failure) or found.word == "broken"
        else:
            stopped += bool(track.failure)
    assert stopped >= 36


def test_a_warm_up_that_failed_in_the_first_series_is_not_counted_in_the_second() -> None:
    log = FailureLog()
    first, second = ran(at(0), log=log), ran(never, log=log)
    assert [len(track.launches[1].failures) for track in (first, second)] == [1, 0]


def test_what_failed_before_a_gate_was_resumed_is_not_forgotten(tmp_path: Path) -> None:
    """The record of the second try has replaced that of the first."""
    file = tmp_path / "failures.json"
    first = ran(at(1, 4), log=FailureLog(file))
    stored = {after.round: after for _, after in first.pairs}
    blocks = make_tracks([CaseSlot(CASE, CASE)], efficiency=False)
    benches = cast("tuple[TrialRunner, TrialRunner]", (PretendedBench(never), PretendedBench(never, stored)))
    PairSeries(benches, RULES, Observer(), StopRequest(), GateTimer(None), FailureLog(file)).run(blocks)
    assert len(blocks[0][0].launches[1].failures) == len(first.launches[1].failures) == 2
