"""Launches that fail now and then: counted by arm, told, and a finding where chance is no excuse."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from distbench.gate import launch_failures
from distbench.gate.case_verdict import case_verdict
from distbench.gate.launch_failures import FailureLog, LaunchCounts
from distbench.gate.series import CaseSlot, CaseTrack, make_tracks
from distbench.gate.verdicts import MetricFinding
from distbench.suite.gate import GateRules, Tolerances
from support import records
from support.scripted_trials import ScriptedTrials, failures_at, no_failures, pair_series

CASE = records.case("ddp")
PAIRS = 10
RULES = GateRules(replace(Tolerances(), efficiency=None), min_pairs=PAIRS, max_pairs=PAIRS)


def random_failures(rate: float, seed: int) -> Callable[[], bool]:
    random = np.random.default_rng(seed)
    return lambda: bool(random.random() < rate)


def failing_track(
    candidate: Callable[[], bool], baseline: Callable[[], bool] = no_failures, log: FailureLog | None = None
) -> CaseTrack:
    blocks = make_tracks([CaseSlot(CASE, CASE)], efficiency=False)
    arms = ScriptedTrials(crashes=baseline), ScriptedTrials(crashes=candidate)
    pair_series(*arms, RULES, failures=log).run(blocks)
    return blocks[0][0]


def failure_finding(track: CaseTrack) -> MetricFinding | None:
    return launch_failures.launch_findings({CASE.name: track.launches}).get(CASE.name)


def test_each_launch_is_counted_in_its_arm_the_warm_up_and_the_second_tries_too():
    track = failing_track(failures_at(0, 3), failures_at(5))
    assert [(arm.succeeded, len(arm.failures)) for arm in track.launches] == [(PAIRS + 1, 1), (PAIRS + 1, 2)]
    assert track.failure is None and len(track.pairs) == PAIRS


def test_a_crash_whose_second_try_works_is_told():
    """The audit's: 54 % of gates with a candidate that crashes in 10 % of its launches said nothing."""
    launches = failure_finding(failing_track(failures_at(4)))
    assert launches is not None and launches.word == "pass" and launches.notable
    assert launches.said.startswith(
        "1 of 12 launches failed in the candidate and 0 of 11 in the baseline, which may be chance (p = 0.52"
    )
    assert "rank 1 in time: RuntimeError: no" in launches.said
    assert failure_finding(failing_track(no_failures)) is None


def test_several_crashes_in_the_candidate_alone_break_it_although_each_second_try_works():
    track = failing_track(failures_at(0, 3, 6, 9, 12, 15))
    verdict = case_verdict(track, None, ({}, {}), RULES, launches=failure_finding(track), confirms=True)
    assert verdict.word == "broken"
    assert verdict.said.startswith(
        "trial: less reliable: 6 of 17 launches failed in the candidate and 0 of 11 "
    )
    assert (
        failure_finding(failing_track(failures_at(0, 3, 6, 9, 12, 15), failures_at(0, 3, 6, 9, 12, 15))).word
        == "pass"
    )


def test_a_case_that_failed_twice_is_broken_once():
    track = failing_track(failures_at(2, 3))
    verdict = case_verdict(track, None, ({}, {}), RULES, launches=failure_finding(track), confirms=True)
    assert [one.metric for one in verdict.findings if one.word == "broken"] == ["trial"]


def test_cases_that_each_fail_too_seldom_are_counted_together():
    cases = {str(i): (LaunchCounts(11), LaunchCounts(11, ["crashed: no"])) for i in range(8)}
    assert {one.word for one in launch_failures.launch_findings(cases).values()} == {"broken"}
    assert {one.word for one in launch_failures.launch_findings({"0": cases["0"]}).values()} == {"pass"}


@pytest.mark.parametrize(("others", "word"), [(1, "broken"), (9, "pass")])
def test_what_breaks_one_case_may_be_chance_in_one_of_ten(others, word):
    steady = {str(i): (LaunchCounts(11), LaunchCounts(11)) for i in range(others)}
    # as much the other way round, so that the cases together show nothing
    steady["0"] = LaunchCounts(6, ["crashed: no"] * 6), LaunchCounts(11)
    worse = LaunchCounts(11), LaunchCounts(6, ["crashed: no"] * 6)
    assert launch_failures.launch_findings({"worse": worse, **steady})["worse"].word == word


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3])
def test_arms_that_crash_alike_are_rarely_told_apart(rate):
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


def test_a_candidate_that_crashes_in_every_third_launch_is_stopped():
    """Gates of one case with two series of ten pairs; where a second try fails too it is broken anyway."""
    stopped = 0
    for seed in range(40):
        track = failing_track(random_failures(1 / 3, seed))
        if not track.failure and launch_failures.is_suspicious(track.launches):
            more = failing_track(random_failures(1 / 3, seed + 1000))
            arms = [one + other for one, other in zip(track.launches, more.launches, strict=True)]
            found = launch_failures.launch_findings({CASE.name: (arms[0], arms[1])})[CASE.name]
            stopped += bool(more.failure) or found.word == "broken"
        else:
            stopped += bool(track.failure)
    assert stopped >= 36


def test_a_warm_up_that_failed_in_the_first_series_is_not_counted_in_the_second():
    log = FailureLog()
    first, second = failing_track(failures_at(0), log=log), failing_track(no_failures, log=log)
    assert [len(track.launches[1].failures) for track in (first, second)] == [1, 0]


def test_what_failed_before_a_gate_was_resumed_is_not_forgotten(tmp_path):
    """The record of the second try has replaced that of the first."""
    file = tmp_path / "failures.json"
    first = failing_track(failures_at(1, 4), log=FailureLog(file))
    stored = {(CASE.id, after.round): after for _, after in first.pairs}
    blocks = make_tracks([CaseSlot(CASE, CASE)], efficiency=False)
    arms = ScriptedTrials(), ScriptedTrials(stored=stored)
    pair_series(*arms, RULES, failures=FailureLog(file)).run(blocks)
    assert len(blocks[0][0].launches[1].failures) == len(first.launches[1].failures) == 2
