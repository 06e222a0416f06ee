"""A machine on which others compute: what a run says of it, when, and what it does about it."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distbench import plan
from distbench.api.extra_rounds import NoisyTrialRounds
from distbench.api.preflight import CpuContention
from distbench.run import Observer
from distbench.suite import load_suite
from support.leftover_processes import busy_processes
from support.pretended_suites import pretended_suite
from support.records import case, failed, measured
from support.run_histories import stored
from support.runs import call

SUITE = pretended_suite(measure="{steps: 3, trials: 1}", metrics="[steptime, throughput, band]")
DDP, FSDP, ZERO, ONE = case("ddp"), case("fsdp"), case("zero2"), case("single", 1)
Run = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def run(tmp_path) -> Run:
    """Run a suite all of whose trials are disturbed; return its results, and what was said meanwhile."""

    def made(*arguments: str) -> tuple[dict[str, Any], str]:
        (tmp_path / "suite.yaml").write_text(SUITE)
        done = call("run", str(tmp_path / "suite.yaml"), "--out", str(tmp_path / "out"), "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    return made


def test_a_noisy_trial_is_told_as_one_when_it_ends(run):
    _, told = run()
    assert "pretended/ws2/mb4/fp32 round 1: measured, noisy (a marching band passed), " in told
    assert told.count(": measured, ") == told.count(": measured, noisy (") == 2


@pytest.mark.parametrize("way", [["--repeat-noisy", "2"], ["--set", "measure.repeat_noisy=2"]])
def test_noisy_trials_are_repeated_as_often_as_allowed(run, way):
    results, told = run(*way)
    assert [each["trials"] for each in results["cases"]] == [3, 3]
    assert told.count("repeating noisy trials of pretended") == 2
    assert told.count("still noisy after 2 repeats, the maximum (measure.repeat_noisy") == 1


def test_the_option_has_the_last_word_on_what_the_suite_repeats(run):
    results, _ = run("--set", "measure.repeat_noisy=2", "--repeat-noisy", "0")
    assert [each["trials"] for each in results["cases"]] == [1, 1]


def test_only_cases_that_lack_quiet_trials_are_repeated(tmp_path):
    run = stored(
        tmp_path,
        1,
        *(disturbed(DDP, 1000), measured(DDP, 1000, round_=1)),
        *(measured(FSDP, 900), measured(FSDP, 900, round_=1), replace(disturbed(FSDP, 900), round=2)),
        *(failed(ZERO), failed(ZERO, round_=1)),
    )
    # the second has its two quiet trials, and the last was never disturbed
    assert NoisyTrialRounds(Observer(), 2, max_repeats=2)(run) == [DDP.id]
    assert NoisyTrialRounds(Observer(), 2, max_repeats=0)(run) == []


def test_a_resumed_run_repeats_no_more_than_is_allowed_in_all(run):
    results, _ = run("--set", "measure.repeat_noisy=1")
    folder = str(Path(results["report"]).parent)
    again = json.loads(call("run", "--resume", folder, "--json").stdout)
    assert [each["trials"] for each in again["cases"]] == [2, 2]
    more = json.loads(call("run", "--resume", folder, "--json", "--repeat-noisy", "2").stdout)
    assert [each["trials"] for each in more["cases"]] == [3, 3]


def test_noisy_trials_are_repeated_before_the_pick_is_settled(run):
    """No noisy case can be recommended, so that there is nothing to settle, and no end without a limit."""
    results, told = run("--set", "measure.repeat_noisy=1", "--until-settled")
    assert [each["trials"] for each in results["cases"]] == [2, 2]
    assert told.index("repeating noisy trials") < told.index("still noisy") < told.index("nothing to settle")


def test_a_plan_says_how_many_trials_repeating_may_add(tmp_path):
    (tmp_path / "suite.yaml").write_text(SUITE)
    keys = ("--set", "measure.repeat_noisy=2", "--set", "limits.trial=100", "--set", "limits.prepare=50")
    plan = ("plan", str(tmp_path / "suite.yaml"), "--out", str(tmp_path), *keys)
    assert "noisy trials: up to 4 extra trials (measure.repeat_noisy: 2 per case)" in call(*plan).stdout
    planned = json.loads(call(*plan, "--json").stdout)
    assert (len(planned["trials"]), planned["repeats_at_most"]) == (2, 4)
    assert planned["at_most_s"] == 50 + 6 * 100
    assert planned["prepare_at_most_s"] == 50
    assert "preparation 50 s; of a trial:" in " ".join(call(*plan).stdout.split())


def test_nothing_is_repeated_unless_it_is_asked_for(run):
    results, told = run()
    assert [each["trials"] for each in results["cases"]] == [1, 1]
    assert "repeat" not in told


def test_a_quiet_trial_is_not_repeated(run):
    results, told = run("--repeat-noisy", "2", "--set", "metrics=[steptime, throughput]")
    assert [each["trials"] for each in results["cases"]] == [1, 1]
    assert "noisy" not in told


def disturbed(of: Any, pace: float, **values: float) -> Any:
    return replace(measured(of, pace, **values), degraded="others took 79% of the CPU time")


def test_where_all_trials_were_noisy_their_order_is_told_but_nothing_is_recommended(tmp_path):
    folder = stored(tmp_path, 1, disturbed(FSDP, 900), disturbed(DDP, 1000), disturbed(ZERO, 950)).folder
    done = call("pick", str(folder))
    text = " ".join(done.stdout.split())
    assert done.returncode == 1
    assert text.startswith(
        "Not settled on 2 devices: 3 of 3 cases were measured on a noisy machine; for example ddp: others "
        "took 79% of the CPU time."
    )
    order = ", ".join(f"{each} (spread unknown)" for each in ("ddp 1,000", "zero2 950", "fsdp 900"))
    assert (
        f"Provisional order, best first, in tokens/s with 95% intervals; noise may have changed it: {order}."
        in text
    )
    assert "distbench run SUITE --repeat-noisy 3" in text
    assert "--set metrics.telemetry.max_foreign_cpu=" in text
    told = json.loads(call("pick", str(folder), "--json").stdout)
    assert told["pick"] is None
    assert [each["case"] for each in told["provisional"]] == ["ddp", "zero2", "fsdp"]


def test_what_noise_does_not_change_is_told_beside_the_order(tmp_path):
    rows = (disturbed(DDP, 1000, memory_peak=3e6), disturbed(FSDP, 900, memory_peak=2e6))
    folder = stored(tmp_path, 1, *rows).folder
    text = " ".join(call("show", str(folder)).stdout.split())
    assert "Noise does not change memory: fsdp needs the least, 1.91 MiB per device." in text
    assert "Lowest memory on 2 devices: fsdp, 1.91 MiB per device, 67% of ddp." in text
    assert "Fastest on" not in text


def test_what_would_not_fit_is_in_no_provisional_order(tmp_path):
    folder = stored(tmp_path, 1, disturbed(DDP, 1000, memory_peak=1e9), disturbed(FSDP, 900)).folder
    text = " ".join(call("pick", str(folder), "--memory", "100MiB").stdout.split())
    assert "noise may have changed it: fsdp 900 (spread unknown)." in text
    assert "Excluded: ddp: does not fit" in text


def paces(of: Any, *values: float, is_noisy: bool = False) -> list[Any]:
    make = disturbed if is_noisy else measured
    return [make(of, value, round_=place) for place, value in enumerate(values)]


@pytest.mark.parametrize(
    ("fsdp", "ddp", "told"),
    [
        # noise may be all that keeps the other back
        (
            [900],
            [800],
            "Not settled on 2 devices: 1 of 2 cases was measured on a noisy machine; for example ddp",
        ),
        ([900, 901, 902], [1000, 1001, 1002], "Not settled on 2 devices: 1 of 2 cases was measured on"),
        ([900, 901, 902], [890, 920, 900], "Not settled on 2 devices: 1 of 2 cases was measured on"),
        (
            [900, 901, 902],
            [300, 301, 302],
            "Train with fsdp on 2 devices (provisional: ddp was measured on a noisy machine): 901 (",
        ),
    ],
    ids=["one trial each", "the noisy one faster", "as fast", "much slower"],
)
def test_a_quiet_case_is_not_recommended_over_a_noisy_one_that_may_be_faster(tmp_path, fsdp, ddp, told):
    records = [*paces(DDP, *ddp, is_noisy=True), *paces(FSDP, *fsdp)]
    text = " ".join(call("pick", str(stored(tmp_path, 3, *records).folder)).stdout.split())
    assert text.startswith(told)


def test_a_provisional_order_is_that_of_the_goal(tmp_path):
    lean, fast = disturbed(FSDP, 900, memory_peak=2e6), disturbed(DDP, 1000, memory_peak=3e6)
    folder = str(stored(tmp_path, 1, lean, fast).folder)
    orders = {
        goal: [
            each["case"]
            for each in json.loads(call("pick", folder, "--goal", goal, "--json").stdout)["provisional"]
        ]
        for goal in ("throughput", "memory")
    }
    assert orders == {"throughput": ["ddp", "fsdp"], "memory": ["fsdp", "ddp"]}
    text = " ".join(call("pick", folder, "--goal", "memory").stdout.split())
    assert "best first, in tokens/s with 95% intervals; noise may have changed it: fsdp 900 (" in text


def test_quiet_cases_on_fewer_devices_do_not_move_the_answer_there(tmp_path):
    records = [*paces(ONE, 500, 501, 502), *paces(DDP, 900, 901, 902, is_noisy=True)]
    text = " ".join(call("pick", str(stored(tmp_path, 3, *records).folder)).stdout.split())
    assert text.startswith("Not settled on 2 devices: 1 of 1 case was measured on a noisy machine")
    assert "By number of devices: 1: single, 501 tokens/s; 2: not settled, ddp leads under noise." in text


def test_the_second_device_is_compared_with_one(tmp_path):
    records = [*paces(ONE, 500, 501, 502), *paces(DDP, 900, 901, 902), *paces(FSDP, 800, 801, 802)]
    text = " ".join(call("pick", str(stored(tmp_path, 3, *records).folder)).stdout.split())
    found = re.search(
        r"By number of devices: 1: single, 501 tokens/s; 2: ddp, 901 tokens/s, (\S+)x \((\S+) to (\S+)\) one "
        r"device, efficiency 90%\.",
        text,
    )
    assert found, text
    value, low, high = map(float, found.groups())
    assert value == pytest.approx(901 / 501, abs=0.01)
    assert low < value < high


def test_devices_on_which_all_cases_failed_are_named_with_the_reason(tmp_path):
    records = [*paces(ONE, 500, 501, 502), failed(DDP), failed(FSDP)]
    text = " ".join(call("pick", str(stored(tmp_path, 3, *records).folder)).stdout.split())
    assert text.startswith("Train with single on 1 device: 501")
    assert "2: 2 of 2 cases: crashed: rank 1 in time: RuntimeError: no." in text


def test_no_case_that_may_be_chosen_is_no_case_of_none(tmp_path):
    folder = stored(tmp_path, 3, *paces(ONE, 500, 501), failed(DDP), failed(FSDP)).folder
    text = " ".join(call("pick", str(folder), "--devices", "2").stdout.split())
    assert text.startswith("No recommendation for 2 devices: 2 of 2 cases: crashed: rank 1 in time: ")


LOCAL = """
workload: {mlp: {}}
batch: {global_batch_size: 8}
world_sizes: [1]
device: cpu
launcher: local
strategies: [ddp]
"""


@pytest.fixture
def load_watch(tmp_path) -> Callable[..., CpuContention]:
    def made(changes: str = "") -> CpuContention:
        (tmp_path / "suite.yaml").write_text(LOCAL + changes)
        suite = load_suite(tmp_path / "suite.yaml")
        return CpuContention(suite, plan.make_plan(suite))

    return made


@pytest.mark.train
def test_a_busy_machine_is_warned_of_before_the_first_trial(load_watch):
    watch = load_watch()
    with busy_processes(1):
        warnings = (time.sleep(0.2) or watch.warning() for _ in range(50))
        warning = next(filter(None, warnings), "")
    assert warning.startswith("warning: other processes used ")
    assert "--set metrics.telemetry.max_foreign_cpu=" in warning


@pytest.mark.parametrize(
    "changes", ["metrics: [steptime, throughput]\n", "metrics: [{telemetry: {max_foreign_cpu: 1.0}}]\n"]
)
def test_who_does_not_mind_is_not_warned(load_watch, changes):
    watch = load_watch(changes)
    with busy_processes(1):
        time.sleep(1.5)
        assert watch.warning() == ""
