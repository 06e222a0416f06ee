"""Which trials a gate makes and in which order, and what a case gets of them, on arms that start nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from distbench.core.case import Batch, Case
from distbench.gate.case_verdict import case_verdict, missing_efficiency_note
from distbench.gate.series import CaseSlot, CaseTrack, GateTimer, make_tracks
from distbench.gate.verdicts import CaseVerdict
from distbench.record import WARMUP_ROUND, Status
from distbench.run import StopRequest
from distbench.suite.gate import GateRules, Tolerances
from support import records
from support.scripted_trials import ScriptedTrials, failures_at, no_failures, pair_series, timed

ONE, TWO = records.case("ddp", 1), records.case("ddp", 2)


def run(
    *cases: Case, efficiency: bool = False, crashes: Callable[[], bool] = no_failures, **changes: Any
) -> tuple[list[CaseTrack], Any]:
    log: list[tuple[str, int, int]] = []
    a, b = ScriptedTrials("A", log), ScriptedTrials("B", log, crashes)
    for case, round_ in changes.pop("stored", ()):
        b.stored[case.id, round_] = timed(case, round_)
    own = replace(Tolerances(), efficiency=0.03 if efficiency else None)
    gate = GateRules(own, min_pairs=3, max_pairs=4)
    blocks = make_tracks([CaseSlot(case, case) for case in cases], efficiency=efficiency)
    pair_series(a, b, gate).run(blocks, **changes)
    return [track for block in blocks for track in block], log


def confirmed(first: CaseTrack, second: CaseTrack | None = None) -> CaseVerdict:
    """The verdict of a gate that confirms a regression by a *second* series."""
    return case_verdict(first, second, ({}, {}), GateRules(), confirms=True)


def measured_trials(log: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    return [made for made in log if made[2] != WARMUP_ROUND]


def test_the_arms_take_turns_in_going_first():
    _, log = run(TWO)
    assert [arm for arm, _, _ in measured_trials(log)] == ["A", "B", "B", "A", "A", "B"]
    _, swapped = run(TWO, candidate_first=True)
    assert [arm for arm, _, _ in measured_trials(swapped)] == ["B", "A", "A", "B", "B", "A"]


def test_a_scaling_series_goes_up_in_one_arm_and_comes_down_in_the_other():
    _, log = run(ONE, TWO, efficiency=True)
    assert [f"{arm}{size}" for arm, size, _ in measured_trials(log)[:8]] == [
        *("A1", "A2", "B2", "B1"),
        *("B1", "B2", "A2", "A1"),
    ]


def test_each_case_is_warmed_up_once_in_each_arm_and_the_trial_is_no_pair():
    (track,), log = run(TWO)
    assert [made for made in log if made[2] == WARMUP_ROUND] == [
        ("A", 2, WARMUP_ROUND),
        ("B", 2, WARMUP_ROUND),
    ]
    assert log[:2] == [("A", 2, WARMUP_ROUND), ("B", 2, WARMUP_ROUND)]
    assert [(a.round, b.round) for a, b in track.pairs] == [(0, 0), (1, 1), (2, 2)]


def test_a_second_series_has_rounds_of_its_own():
    (track,), _ = run(TWO, first_round=100)
    assert [a.round for a, _ in track.pairs] == [100, 101, 102]


def test_a_trial_that_fails_once_is_repeated_and_one_that_fails_twice_ends_its_case():
    (track,), log = run(TWO, crashes=failures_at(1))
    assert measured_trials(log).count(("B", 2, 0)) == 2
    assert track.failure is None and len(track.pairs) == 3
    (track,), log = run(TWO, crashes=failures_at(1, 2))
    assert measured_trials(log) == [("A", 2, 0), ("B", 2, 0), ("B", 2, 0)]
    assert track.failure and track.failure[0] is None
    assert track.failure[1] is not None and track.failure[1].status is Status.CRASHED
    assert track.pairs == []


def test_what_was_made_before_is_not_made_again():
    (track,), log = run(TWO, stored=[(TWO, 0), (TWO, 2)])
    assert [made for made in measured_trials(log) if made[0] == "B"] == [("B", 2, 1)]
    assert [b.round for _, b in track.pairs] == [0, 1, 2]


def test_both_arms_get_new_warm_parents_every_three_pairs():
    """What one parent adds to all of its trials would be in the mean and in no spread."""
    arms = ScriptedTrials(), ScriptedTrials()
    pair_series(*arms, GateRules(min_pairs=7, max_pairs=7)).run(
        make_tracks([CaseSlot(TWO, TWO)], efficiency=False)
    )
    assert [arm.restarts for arm in arms] == [2, 2]


def test_a_series_without_a_verdict_ends_at_its_last_pair():
    unsteady = ScriptedTrials(step_s=lambda round_: (0.5, 2.0)[round_ % 2])
    blocks = make_tracks([CaseSlot(TWO, TWO)], efficiency=False)
    pair_series(ScriptedTrials(), unsteady, GateRules(min_pairs=3, max_pairs=7)).run(blocks)
    assert len(blocks[0][0].pairs) == 7


@pytest.mark.parametrize("asked", [True, False])
def test_a_gate_that_was_asked_to_stop_begins_nothing(asked):
    log: list[tuple[str, int, int]] = []
    stop = StopRequest()
    stop.stop_now = asked
    arms = ScriptedTrials("A", log), ScriptedTrials("B", log)
    timer = GateTimer(None if asked else 0.0)
    pair_series(*arms, GateRules(), stop=stop, timer=timer).run(
        make_tracks([CaseSlot(TWO, TWO)], efficiency=False)
    )
    # out of time it is warm already, for nobody looks at the clock in between
    assert measured_trials(log) == []


@pytest.mark.parametrize(
    ("arm", "status", "word"),
    [
        ("B", Status.CRASHED, "broken"),
        ("B", Status.HANG, "broken"),
        ("B", Status.INVALID_NAN, "invalid"),
        ("A", Status.CRASHED, "incomparable"),
        ("A", Status.INVALID_NAN, "incomparable"),
    ],
)
def test_a_case_whose_arm_failed_twice_has_the_word_for_it(arm, status, word):
    record = records.failed(TWO, "the dog ate my gradients", status=status)
    track = CaseTrack(CaseSlot(TWO, TWO), failure=(record, None) if arm == "A" else (None, record))
    verdict = confirmed(track)
    assert verdict.word == word
    assert f"{status}: the dog ate my gradients" in verdict.findings[0].said


def test_a_case_without_a_pair_is_inconclusive():
    assert confirmed(CaseTrack(CaseSlot(TWO, TWO))).word == "inconclusive"


@pytest.mark.parametrize(
    ("a", "b", "word"), [(1.0, 2.0, "regressed"), (2.0, 1.0, "improved"), (1.0, 1.0, "pass")]
)
def test_a_pace_is_judged_from_the_candidates_side(a, b, word):
    pairs = [(timed(TWO, i, a), timed(TWO, i, b)) for i in range(5)]
    track = CaseTrack(CaseSlot(TWO, TWO), pairs=pairs)
    assert {one.metric: one.word for one in confirmed(track, track).findings}["tokens_per_s"] == word


def test_a_regression_needs_a_second_series():
    pairs = [(timed(TWO, i, 1.0), timed(TWO, i, 2.0)) for i in range(5)]
    slower = CaseTrack(CaseSlot(TWO, TWO), pairs=pairs)
    assert confirmed(slower).word == "inconclusive"
    again = CaseTrack(CaseSlot(TWO, TWO), pairs=[(one, one) for one, _ in pairs])
    assert confirmed(slower, again).word == "pass"


def test_a_case_of_a_strong_and_a_weak_series_is_held_against_the_strong_one():
    """Both series share the case on two devices; the weak one's base used to replace the strong one's."""
    shared = records.case("ddp", 2, batch=Batch(8, 4, 1))
    strong, weak = records.case("ddp", 1, batch=Batch(8, 8, 1)), records.case("ddp", 1, batch=Batch(4, 4, 1))
    slots = [CaseSlot(case, case) for case in (weak, shared, strong)]
    tracks = {
        track.slot.candidate.id: track for block in make_tracks(slots, efficiency=True) for track in block
    }
    assert tracks[shared.id].single_device is tracks[strong.id]


def test_an_efficiency_that_can_not_be_judged_is_named_where_it_is_gated():
    tracks = [track for block in make_tracks([CaseSlot(TWO, TWO)], efficiency=True) for track in block]
    (note,) = missing_efficiency_note(tracks, GateRules())
    assert TWO.name in note
    assert missing_efficiency_note(tracks, GateRules(replace(Tolerances(), efficiency=None))) == ()
    both = [
        t for block in make_tracks([CaseSlot(ONE, ONE), CaseSlot(TWO, TWO)], efficiency=True) for t in block
    ]
    assert missing_efficiency_note(both, GateRules()) == ()
