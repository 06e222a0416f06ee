"""``distbench tune``: predict all cases of a grid, and measure those that may be the fastest."""

import json
from pathlib import Path

import pytest

from distbench.record.run_folder import Run
from support.runs import call

pytestmark = pytest.mark.train

SUITE = """
name: grid
workload: {transformer: {preset: tiny, seq_len: 32}}
data: synthetic
batch: {global_batch_size: 4}
device: cpu
world_sizes: [1, 2]
strategies: [ddp, fsdp, {fsdp: {sharding: grad_op}}]
measure: {warmup: 1, steps: 2, trials: 2, profile_steps: 0}
metrics: [steptime, throughput, memory]
launcher: kept
"""


@pytest.fixture
def suite(tmp_path):
    file = tmp_path / "grid.yaml"
    file.write_text(SUITE)
    return str(file)


def measured_cases(run: Run) -> dict[str, int]:
    """Number of timed trials by strategy and devices."""
    found: dict[str, int] = {}
    for record in run.records():
        if record.job.kind == "measure":
            key = f"{record.case.label}/ws{record.case.world_size}"
            found[key] = found.get(key, 0) + 1
    return found


def test_what_does_not_fit_by_prediction_is_not_launched(suite, tmp_path):
    out = tmp_path / "runs"
    done = call("tune", suite, "--memory", "17MiB", "--out", str(out), "--json", "--set", "probe.seconds=3")
    told = json.loads(done.stdout)
    run = Run(Path(told["run"]))
    # by formula ddp takes 19.8 MiB, fsdp 12.8 and 14.1
    assert [record.job.kind for record in run.records()].count("probe") == 1
    tried = measured_cases(run)
    assert tried and {*tried} <= {"fsdp/ws2", "fsdp-grad-op/ws2"}
    said = " ".join(done.stderr.split())
    assert "1 case left out, by prediction larger than 17.0 MiB (--memory): ddp/ws2" in said
    assert (run.folder / "report.html").is_file()


def test_a_stopped_tune_goes_on_and_measures_no_case_twice(suite, tmp_path):
    out, options = str(tmp_path / "runs"), ("--set", "probe.seconds=3", "--json")
    first = call("tune", suite, "--minutes", "0.001", "--out", out, *options)
    folder = json.loads(first.stdout)["run"]
    assert measured_cases(Run(Path(folder))) == {}
    assert "the time is up (--minutes)" in first.stderr
    again = call("tune", "--resume", folder, "--out", out, "--json")
    assert json.loads(again.stdout)["run"] == folder
    run = Run(Path(folder))
    tried = measured_cases(run)
    assert tried
    assert max(tried.values()) <= 2
    shown = json.loads(call("show", folder, "--view", "predictions", "--json").stdout)
    assert {row["strategy"] for row in shown["rows"]} == {key.partition("/")[0] for key in tried}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "tune: missing SUITE"),
        (("SUITE", "--minutes", "0"), "--minutes = 0: must be above 0"),
        (("SUITE", "--memory", "much"), "--memory = 'much'"),
        (("SUITE", "--resume", "abcd"), "tune --resume takes no SUITE"),
        (("--resume", "abcd1234"), "no such run"),
    ],
)
def test_mistakes_are_refused_before_anything_is_launched(suite, tmp_path, options, message):
    words = [suite if word == "SUITE" else word for word in options]
    done = call("tune", *words, "--out", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "runs").exists()
