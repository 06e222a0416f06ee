"""A stored run as the baseline: what occasions differ by is in its interval, and it never fails by pace."""

import json
import math
import random
from dataclasses import replace

import pytest

from distbench.analysis.history import HistoryRun
from distbench.analysis.run import RunAnalysis
from distbench.analysis.statistics.intervals import run_variance
from distbench.gate.stored_baseline import judge_stored, judge_throughput, log_step_times
from distbench.record import Record
from distbench.suite.gate import GateRules
from support import records
from support.runs import QUICK, call
from support.suites import write_suite

DDP = records.case("ddp")
HERE = {"cpu": "made up", "cpu_cores": 2}


def run(*seconds: float, **told: object) -> RunAnalysis:
    trials = [
        replace(records.measured(DDP, round_=i), values={**records.measured(DDP).values, "step_s": each})
        for i, each in enumerate(seconds)
    ]
    suite = {"measure": {"warmup": 1, "steps": told.pop("steps", 10)}}
    return RunAnalysis(replace(records.info(DDP), machine=told.pop("machine", HERE), suite=suite), trials)


def stored_days(between: float, count: int, seed: int = 1) -> list[RunAnalysis]:
    random_ = random.Random(seed)
    shifts = [random_.gauss(0, between) for _ in range(count)]
    return [run(*(math.exp(shift + random_.gauss(0, 0.01)) for _ in range(5))) for shift in shifts]


def throughput_finding(baseline: RunAnalysis, candidate: RunAnalysis, others: list[RunAnalysis]):
    stored = [HistoryRun.of(each) for each in (*others, baseline)]
    (case,) = judge_stored(baseline, candidate, stored, GateRules(), "stored").cases
    return next(one for one in case.findings if one.metric == "tokens_per_s")


def test_two_occasions_of_the_same_are_rarely_apart_where_their_trials_alone_would_say_so():
    """Occasions differ by 3 %, trials by 1 %: by their trials alone two of three differ for sure."""
    runs = [list(log_step_times(each)[DDP.id]) for each in stored_days(0.03, 600, seed=2)]
    outside = naive = 0
    looks = 100
    for i in range(looks):
        *past, before, after = runs[6 * i : 6 * i + 6]
        known = run_variance([[math.exp(sum(times) / 5) for times in (*past, before)]])
        found = judge_throughput(before, after, known, "", 0.03)
        outside += not found.low <= 1 <= found.high
        naive += abs(sum(after) - sum(before)) / 5 > 2.3 * 0.01 * math.sqrt(2 / 5)
    assert outside <= 0.1 * looks
    assert naive >= 0.5 * looks


def test_runs_before_a_change_do_not_make_runs_differ():
    """A machine that was twice as slow until its memory was replaced is as steady as it was."""
    earlier = [
        run(*(2 * record.values["step_s"] for record in of.records)) for of in stored_days(0.002, 9, seed=3)
    ]
    found = throughput_finding(run(1.0, 1.01, 0.99), run(1.0, 1.01, 0.99), [*earlier, *stored_days(0.002, 9)])
    assert (found.word, "over 19 runs" in found.said) == ("pass", True)


def test_a_slow_down_is_told_and_never_fails_by_a_stored_run():
    found = throughput_finding(run(1.0, 1.01, 0.99), run(1.2, 1.21, 1.19), stored_days(0.01, 8))
    assert found.word == "inconclusive"
    assert found.low > 1
    assert "20.0% more time per step" in found.said
    assert "--baseline" in found.said


def test_a_quiet_history_lets_a_stored_run_pass():
    found = throughput_finding(run(1.0, 1.01, 0.99), run(1.0, 1.01, 0.99), stored_days(0.002, 30))
    assert found.word == "pass"
    assert "over 31 runs" in found.said


@pytest.mark.parametrize(
    ("baseline", "candidate", "others", "word", "told"),
    [
        (run(1.0, 1.01), run(1.0, 1.01), [], "inconclusive", "unknown: 3 runs of a case"),
        (run(1.0), run(1.0, 1.01), stored_days(0.01, 5), "inconclusive", "measure.trials"),
        (run(1.0, 1.01, steps=5), run(1.0, 1.01), [], "incomparable", "measure.steps was 5, is 10"),
        (run(1.0, 1.01, machine={"cpu": "other"}), run(1.0, 1.01), [], "incomparable", "another machine"),
    ],
)
def test_what_a_stored_run_can_not_tell_is_said(baseline, candidate, others, word, told):
    found = throughput_finding(baseline, candidate, others)
    assert found.word == word
    assert told in found.said


def test_runs_of_other_machines_tell_nothing_of_this_one():
    foreign = [
        RunAnalysis(replace(each.info, machine={"cpu": "other"}), each.records)
        for each in stored_days(0.01, 9)
    ]
    assert (
        "the run-to-run variance is unknown"
        in throughput_finding(run(1.0, 1.01), run(1.0, 1.01), foreign).said
    )


def test_what_is_counted_is_gated_exactly_all_the_same():
    more: list[Record] = [replace(r, values={**r.values, "comm_bytes": 2e5}) for r in run(1.0, 1.0).records]
    candidate = replace(run(1.0, 1.0), records=more)
    result = judge_stored(run(1.0, 1.0), candidate, [], GateRules(), "stored")
    assert result.exit_code() == 1
    assert [one.word for one in result.cases[0].findings if one.metric == "comm_bytes"] == ["regressed"]


@pytest.mark.parametrize(
    ("loss", "comm_bytes", "code", "words"),
    [
        (2.5, 1e5, 3, {"tokens_per_s": "inconclusive", "comm_bytes": "pass"}),
        (2.5, 2e5, 1, {"tokens_per_s": "inconclusive", "comm_bytes": "regressed"}),
        (1.5, 1e5, 1, {"tokens_per_s": "inconclusive", "comm_bytes": "pass", "trial": "invalid"}),
    ],
)
def test_on_a_noisy_machine_only_times_are_not_judged(loss, comm_bytes, code, words):
    noisy = [
        replace(
            each,
            degraded="others computed",
            values={**each.values, "comm_bytes": comm_bytes},
            samples={"loss": [[3.0, loss]] * 2},
        )
        for each in run(1.0, 1.01).records
    ]
    candidate = replace(run(1.0, 1.01), records=noisy)
    result = judge_stored(run(1.0, 1.01), candidate, [], GateRules(), "stored")
    found = {one.metric: one.word for one in result.cases[0].findings}
    assert result.exit_code() == code
    assert words.items() <= found.items()
    pace = next(one for one in result.cases[0].findings if one.metric == "tokens_per_s")
    assert pace.said == "measured on a noisy machine in the second run: others computed"


@pytest.mark.train
def test_a_run_of_yesterday_is_a_baseline(run_suite):
    # nobody watches the machine, so that none of these trials is left out as disturbed
    metrics = "metrics: [steptime, throughput, memory, communication]"
    text = (
        QUICK.replace("trials: 1", "trials: 2")
        + f"strategies: [ddp]\n{metrics}\ngate: {{efficiency: false}}\n"
    )
    done = run_suite(text)
    out = done.folder.parent
    told = call(
        "gate", str(out.parent / "suite.yaml"), "--baseline", str(done.folder), "--out", str(out), "--json"
    )
    assert told.returncode == 3, told.stderr
    (case,) = json.loads(told.stdout)["cases"]
    words = {one["metric"]: one["word"] for one in case["findings"]}
    # on a busy machine even the memory of two trials can vary too much to pass
    assert words.pop("peak_memory") in ("pass", "inconclusive")
    assert words == {"tokens_per_s": "inconclusive", "comm_bytes": "pass", "comm_calls": "pass"}
    for option in (("--env", "A=1"), ("--dry-run",), ("--resume", str(done.folder))):
        refused = call("gate", str(out.parent / "suite.yaml"), "--baseline", str(done.folder), *option)
        assert refused.returncode == 2, option


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "run.json: corrupt: not valid JSON"),
        ('{"benchmarks": []}', "run.json: format: missing; not a distbench file"),
        ('{"format": 999}', "written by a newer distbench"),
        ('{"format": 3, "run_id": "\\u001b[31mred"}', "run.json: suite_name"),
    ],
)
def test_a_foreign_baseline_is_refused_before_anything_runs(tmp_path, content, told):
    suite = write_suite(tmp_path, QUICK + "strategies: [ddp]\n")
    (tmp_path / "stored").mkdir()
    (tmp_path / "stored" / "run.json").write_text(content)
    out = tmp_path / "out"
    done = call("gate", str(suite), "--baseline", str(tmp_path / "stored"), "--out", str(out))
    assert done.returncode == 2
    assert told in done.stderr
    assert "\x1b" not in done.stderr
    assert not out.exists()
