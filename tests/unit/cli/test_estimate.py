"""``plan --estimate``: short trials tell how long a run takes, and leave nothing behind."""

import json
from typing import Any

import pytest

from distbench.record import catalog
from support.pretended_suites import pretended_suite
from support.records import case, measured
from support.run_histories import stored
from support.runs import Done, call

SUITE = pretended_suite(measure="{warmup: 1, steps: 30, trials: 2}")
TIMED_S = 1.0
"""That the launcher says the timed steps of a trial took, however many they are."""


@pytest.fixture
def planned(tmp_path):
    def made(*arguments: str, suite: str = SUITE) -> Done:
        (tmp_path / "suite.yaml").write_text(suite)
        return call("plan", str(tmp_path / "suite.yaml"), "--out", str(tmp_path / "out"), *arguments)

    return made


def estimate_text(done: Done) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def test_a_short_trial_of_each_case_is_scaled_to_the_steps_of_the_suite(planned):
    plan = estimate_text(planned("--estimate", "--json"))
    one, other = (each["trial_s"] for each in plan["cases"])
    # 3 timed steps were made, and 27 more would be
    assert min(one, other) >= 27 * TIMED_S / 3
    assert plan["expected_s"] == pytest.approx(2 * (one + other))
    assert {each["trial_note"] for each in plan["cases"]} == {"a short trial"}
    assert (
        "from a short trial of each case: 1 warm-up and 3 timed steps, scaled to 1 and 30"
        in (plan["expected_note"])
    )


def test_short_trials_are_told_while_they_run_and_leave_nothing(planned, tmp_path):
    done = planned("--estimate")
    assert "[2/2] pretended+also-works/ws2/mb4/fp32 round 1: measured" in done.stderr
    assert "A TRIAL" in done.stdout and "unknown" not in done.stdout
    assert not (tmp_path / "out").exists()


def test_only_what_no_earlier_run_tells_is_tried(planned, tmp_path):
    planned()
    call("run", str(tmp_path / "suite.yaml"), "--out", str(tmp_path / "out"))
    done = planned("--estimate", "--json")
    assert {each["trial_note"] for each in estimate_text(done)["cases"]} == {"earlier runs"}
    assert done.stderr == ""
    assert len(list((tmp_path / "out").iterdir())) == 1


def test_a_run_with_other_steps_is_scaled_too(planned, tmp_path):
    planned()
    call("run", str(tmp_path / "suite.yaml"), "--out", str(tmp_path / "out"), "--set", "measure.steps=3")
    plan = estimate_text(planned("--json"))
    assert min(each["trial_s"] for each in plan["cases"]) >= 27 * TIMED_S / 3


def test_a_case_that_fails_is_told_with_its_reason(planned):
    done = planned("--estimate", "--json", suite=SUITE.replace("also-works", "raises"))
    assert done.returncode == 1
    works, raises = estimate_text(done)["cases"]
    assert works["trial_s"] and raises["trial_s"] is None
    assert raises["trial_note"].startswith("crashed: rank 1 in time: RuntimeError: a pretended failure")
    assert (
        "without cases whose short trial was not measured: pretended+raises"
        in estimate_text(done)["expected_note"]
    )


def test_what_cannot_run_here_is_not_tried(planned):
    done = planned("--estimate", "--json", suite=SUITE.replace("also-works", "lacks"))
    assert done.returncode == 0
    assert [each["trial_note"] for each in estimate_text(done)["cases"]] == ["a short trial", "unsupported"]


def test_what_only_a_run_tells_is_said_to_be_missing(planned):
    note = estimate_text(planned("--estimate", "--json", "--check"))["expected_note"]
    assert "check trials, whose time is unknown before a first run" in note


def test_trials_here_and_a_run_elsewhere_do_not_go_together(planned):
    done = planned("--estimate", "--on", "slurm")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--estimate and --commands are about this machine" in done.stderr


def test_what_a_killed_estimate_leaves_is_no_run(tmp_path):
    stored(tmp_path / "out" / ".estimate-abcd1234" / "run", 1, measured(case("ddp"), 1000))
    kept = stored(tmp_path / "out" / "run", 2, measured(case("ddp"), 1000))
    assert [run.folder for run in catalog.runs_below(tmp_path / "out")] == [kept.folder]
    assert [run.folder for run in catalog.runs_in(tmp_path / "out")] == [kept.folder]
