"""``run --until-settled``: more rounds of the cases that may still be the best, and of no others."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distbench.analysis.choice import Candidate
from distbench.analysis.statistics.intervals import intervals
from distbench.analysis.undecided_cases import unsettled_candidates
from distbench.cli import main
from support import fake_slurm
from support.pretended_suites import pretended_suite
from support.runs import PLUGINS, QUICK, call, run_in
from support.suites import write_suite

SUITE = pretended_suite(measure="{steps: 3, trials: 1}")

Run = Callable[..., tuple[list[dict[str, Any]], str]]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys) -> Run:
    """Run the suite; return its cases and what was told meanwhile."""
    monkeypatch.setenv("DISTBENCH_PLUGINS", PLUGINS)

    def made(*arguments: str) -> tuple[list[dict[str, Any]], str]:
        suite = write_suite(tmp_path, SUITE)
        main(["run", str(suite), "--out", str(tmp_path / "out"), "--json", *arguments])
        told = capsys.readouterr()
        return json.loads(told.out)["cases"], told.err

    return made


def test_rounds_are_added_until_the_spread_is_known_and_the_pick_settled(run):
    cases, told = run("--until-settled")
    # one trial tells nothing of the spread; the second of a pretended case is as the first, in its round
    assert [case["trials"] for case in cases] == [2, 2]
    assert "not settled: starting another round of pretended on 2 devices" in told
    assert "settled: no case can be more than 3% better than the pick" in told


def test_no_round_begins_when_the_minutes_are_up(run):
    cases, told = run("--until-settled", "--minutes", "0.0000001")
    assert [case["trials"] for case in cases] == [1, 1]
    assert "(--minutes): pretended" in told and "may still be the best" in told


def test_the_engine_is_asked_once_for_its_time_limit_whatever_the_number_of_rounds(
    run, tmp_path, monkeypatch
):
    asked = tmp_path / "asked"
    slurm = fake_slurm.install(tmp_path / "slurm", squeue=f"echo once >> {asked}; echo 20:00")
    monkeypatch.setenv("PATH", str(slurm), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    cases, _ = run("--until-settled")
    assert [case["trials"] for case in cases] == [2, 2]
    assert asked.read_text() == "once\n"


@pytest.fixture
def records(run, tmp_path) -> list[Path]:
    """The records of a run of one round: of also-works, and of works."""
    run()
    return sorted(tmp_path.glob("out/*/trials/*/0/record.json"))


def folder_of(record: Path) -> Path:
    """Folder of the run that *record* is of."""
    return record.parents[3]


def add_round(record: Path, round_: int, **changes: Any) -> None:
    """Write a trial like that of *record*, with *changes*, as that of *round_*."""
    folder = record.parent.parent / str(round_)
    if not folder.exists():
        shutil.copytree(record.parent, folder)
    (folder / "record.json").write_text(
        json.dumps({**json.loads(record.read_text()), "round": round_, **changes})
    )


def test_what_fails_is_not_measured_again_and_again(records):
    also_works, _ = records
    add_round(also_works, 1, status="crashed")
    folder = folder_of(also_works)
    assert main(["run", "--resume", str(folder), "--until-settled"]) == 1
    assert len(list(folder.glob("trials/*/*/record.json"))) == 3


def test_a_trial_that_was_stopped_did_not_fail(records):
    also_works, _ = records
    add_round(also_works, 1, status="cancelled")
    main(["run", "--resume", str(folder_of(also_works)), "--until-settled"])
    assert json.loads((also_works.parent.parent / "2/record.json").read_text())["status"] == "measured"


def test_a_resumed_run_has_been_looked_at_before(records, capsys):
    """What would settle at the first look, after the one trial that is planned, does not at the fourth."""
    also_works, works = records
    values = json.loads(works.read_text())["values"]
    for round_ in range(4):
        pace = 1000 * math.exp(0.03 * (-1) ** round_)
        add_round(also_works, round_, values={**values, "tokens_per_s": 940})
        add_round(works, round_, values={**values, "tokens_per_s": pace})
    main(["run", "--resume", str(folder_of(works)), "--until-settled", "--minutes", "0.0000001"])
    assert "not settled after" in capsys.readouterr().err


def test_where_no_case_can_be_recommended_nothing_is_settled(run):
    _, told = run("--until-settled", "--check", "--set", "measure.trials=0")
    assert "nothing to settle, because no case can be recommended" in told


@pytest.mark.train
def test_a_finished_run_is_settled_later_on_real_ranks(tmp_path):
    first = run_in(tmp_path, f"{QUICK}metrics: [steptime, throughput]\nstrategies: [ddp, fsdp]\n")
    done = call("run", "--resume", str(first.folder), "--until-settled", "--minutes", "0.05", "--json")
    cases = json.loads(done.stdout)["cases"]
    assert [(case["failed_trials"], case["trials"] > 1) for case in cases] == [(0, True)] * 2, done.stderr


def test_minutes_must_be_some(capsys):
    assert main(["run", "suite.yaml", "--until-settled", "--minutes", "0"]) == 2
    assert "--minutes = 0: must be above 0" in capsys.readouterr().err


def test_minutes_without_rounds_to_limit_are_refused(capsys):
    assert main(["run", "suite.yaml", "--minutes", "5"]) == 2
    assert "--minutes = 5: limits the rounds that --until-settled adds; add" in capsys.readouterr().err


def random_records(logs: np.ndarray, trials: int, rng: np.random.Generator) -> list[Candidate]:
    noise = 0.02 * rng.standard_normal((len(logs), trials))
    samples = [dict(enumerate(map(float, row))) for row in np.exp(logs[:, None] + noise)]
    speeds = [each.for_comparisons_of(len(logs)) for each in intervals(samples)]
    return [Candidate(str(i), str(i), str(i), 2, "fp32", "", i, speed) for i, speed in enumerate(speeds)]


def test_only_what_may_still_be_better_is_measured_again():
    rng = np.random.default_rng(3)
    close = unsettled_candidates(random_records(np.log([1.0, 0.99, 0.98, 0.5, 0.4]), 3, rng), 1)
    assert {one.id for one in close} == {"0", "1", "2"}
    assert unsettled_candidates(random_records(np.log([1.0, 0.7, 0.6, 0.5, 0.4]), 5, rng), 1) == []


def test_each_look_takes_less_of_the_risk_than_the_one_before():
    """The more often one looks, the surer one must be: what settles at first does not after many looks."""
    rng = np.random.default_rng(2)
    cases = random_records(np.log([1.0, 0.93, 0.6, 0.5]), 4, rng)
    assert [bool(unsettled_candidates(cases, look)) for look in (1, 10_000)] == [False, True]


def rounds_until_settled(truth: np.ndarray, rng: np.random.Generator, most: int) -> tuple[int, bool]:
    """Rounds of a run in which only contenders go on, and whether its pick was settled within *most*."""
    samples: list[dict[int, float]] = [{} for _ in truth]
    going_on = range(len(truth))
    for number in range(most):
        for i in going_on:
            samples[i][number] = float(np.exp(truth[i] + 0.02 * rng.standard_normal()))
        if number < 2:
            continue
        speeds = [each.for_comparisons_of(len(truth)) for each in intervals(samples)]
        cases = [Candidate(str(i), str(i), str(i), 2, "", "", i, speed) for i, speed in enumerate(speeds)]
        open_ = unsettled_candidates(cases, number - 1)
        if not open_:
            return number + 1, True
        going_on = sorted(int(one.id) for one in open_)
    return most, False


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_eight_cases_are_settled_within_some_dozens_of_rounds(spread):
    rng = np.random.default_rng(5)
    ends = [rounds_until_settled(np.log(1 - spread * rng.random(8)), rng, 43) for _ in range(10)]
    # with a bound for any two of the eight cases one of ten runs of equal ones settles
    assert sum(settled for _, settled in ends) >= 9
    assert np.mean([rounds for rounds, _ in ends]) <= 30


def test_looking_after_every_round_seldom_settles_on_a_case_that_is_worse_by_more_than_the_margin():
    rng, wrong, runs = np.random.default_rng(3), 0, 40
    truth = np.log([0.94, 1.0, 0.985, 0.97, 0.8])
    for _ in range(runs):
        noise = 0.03 * rng.standard_normal((len(truth), 40))
        for trials in range(2, 40):
            samples = [dict(enumerate(map(float, row))) for row in np.exp(truth[:, None] + noise[:, :trials])]
            speeds = [each.for_comparisons_of(len(truth)) for each in intervals(samples)]
            cases = [Candidate(str(i), str(i), str(i), 2, "", "", i, speed) for i, speed in enumerate(speeds)]
            if not unsettled_candidates(cases, trials - 1):
                break
        close = [one for one in cases if one.speed.value >= 0.97 * max(each.speed.value for each in cases)]
        pick = min(close, key=lambda one: one.simplicity)
        wrong += truth[int(pick.id)] < np.log(0.97)
    assert wrong / runs <= 0.05
