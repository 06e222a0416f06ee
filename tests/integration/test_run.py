"""What a run leaves: records with all samples, no secrets, the same again from ``show`` and ``report``."""

import json
import shutil
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from distbench.jobs.measure import MeasureJob
from support.runs import QUICK, Done, Finished, run_in

Command = Callable[..., Done]

# DDP makes its buckets anew in its second step, with messages that gloo's threads free when they come to it:
# a few bytes that a peak has or lacks, so that step is no timed one
SUITE = QUICK.replace("trials: 1", "trials: 2").replace("warmup: 1", "warmup: 2")
SUITE += "strategies: [single, ddp, dp]\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Finished:
    """One run that the tests below read; its environment holds secrets."""
    secrets = {"AWS_SECRET_ACCESS_KEY": "canary-7391", "NCCL_AUTH_TOKEN": "canary-7391"}
    return run_in(tmp_path_factory.mktemp("run"), SUITE, **secrets)


def test_a_run_keeps_every_sample_and_describes_its_columns(finished):
    assert finished.code == 0, finished.errors
    record = finished.record("ddp")
    assert [len(rank) for rank in record["samples"]["step_s"]] == [3, 3]
    assert [len(rank) for rank in record["samples"]["loss"]] == [3, 3]
    assert [len(rank) for rank in record["warmup_losses"]] == [2, 2]
    assert record["columns"]["step_s"]["unit"] == "s"
    passes = {name: column.get("pass") for name, column in record["columns"].items()}
    assert (passes["step_s"], passes["comm_bytes"], passes["grad_norm"]) == ("time", "count", "grad_norm")
    assert record["columns"]["tokens_per_s"]["better"] == "higher"
    assert {row["op"] for row in record["tables"]["collectives"]} == {"all_reduce"}
    # only a case with a loader has steps with ready data
    assert set(record["phases"]) == {"launch", "start", "build", *MeasureJob.phases} - {"ready"}


def test_throughput_is_that_of_the_rank_that_takes_longest_over_its_steps(finished):
    record = finished.record("ddp")
    windows = record["samples"]["step_s"]
    tokens = 8 * 32 * len(windows[0]) / max(map(sum, windows))
    assert record["values"]["tokens_per_s"] == pytest.approx(tokens)
    assert record["values"]["tokens_per_s_per_device"] == pytest.approx(tokens / 2)


def test_a_value_is_the_mean_over_the_steps_of_what_the_ranks_have_together(finished):
    record = finished.record("ddp")
    losses = [statistics.fmean(step) for step in zip(*record["samples"]["loss"], strict=True)]
    assert record["values"]["loss"] == pytest.approx(statistics.fmean(losses))
    slowest = max(map(statistics.fmean, record["samples"]["step_s"]))
    assert record["values"]["step_s"] == pytest.approx(slowest)


def test_memory_is_counted_to_the_byte_and_the_same_in_every_trial(finished):
    measured = [case for case in finished.cases.values() if case["status"] == "measured"]
    assert measured
    for case in measured:
        peak = case["values"]["memory_peak"]
        assert peak["low"] == peak["high"] > 4 * 4 * finished.record("ddp")["effective"]["parameters"]


def test_show_and_report_give_the_same_again(finished, distbench):
    shown = json.loads(distbench("show", str(finished.folder), "--json").stdout)
    assert {case["case"]: case for case in shown["cases"]} == finished.cases
    before = (finished.folder / "report.html").read_text()
    assert distbench("report", str(finished.folder)).returncode == 0
    assert (finished.folder / "report.html").read_text() == before


def test_a_case_that_can_not_run_here_is_unsupported_with_the_reason(finished):
    case = finished.cases["dp/ws2/mb4/fp32"]
    assert case["status"] == "unsupported"
    assert case["reason"] == "nn.DataParallel needs CUDA devices"


@pytest.mark.drill("secrets in the environment of a run")
def test_no_secret_of_the_environment_gets_into_a_file_of_the_run(finished):
    files = [file for file in finished.folder.rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if "canary-7391" in file.read_text(errors="replace")]


def test_a_torn_off_run_is_finished_by_resume_with_only_what_is_missing(tmp_path, finished, distbench):
    finished = replace(finished, folder=Path(shutil.copytree(finished.folder, tmp_path / "copy")))
    (lost,) = finished.folder.glob("trials/ddp-*/1/record.json")
    kept = {file: file.read_text() for file in finished.folder.glob("trials/*/*/record.json") if file != lost}
    lost.unlink()
    resumed = distbench("run", "--resume", str(finished.folder))
    assert resumed.returncode == 0, resumed.stderr
    assert lost.is_file()
    assert {file: file.read_text() for file in kept} == kept
    assert "[1/1]" in resumed.stderr
