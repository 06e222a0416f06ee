"""What a run leaves: records with all samples, no secrets, the same again from ``show`` and ``report``."""

from __future__ import annotations

import json
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest
from conftest import QUICK, Finished

from distbench.trial import PASSES

pytestmark = pytest.mark.train

Run = Callable[..., Finished]
Command = Callable[..., CompletedProcess[str]]

SUITE = QUICK.replace("trials: 1", "trials: 2") + "strategies: [single, ddp, dp]\n"


def test_a_run_keeps_every_sample_and_describes_its_columns(run_suite: Run) -> None:
    finished = run_suite(SUITE)
    assert finished.code == 0, finished.errors
    record = finished.record("ddp")
    assert [len(rank) for rank in record["samples"]["step_s"]] == [3, 3]
    assert [len(rank) for rank in record["samples"]["loss"]] == [3, 3]
    assert [len(rank) for rank in record["warmup_losses"]] == [1, 1]
    assert record["columns"]["step_s"]["unit"] == "s"
    passes = {name: column.get("pass") for name, column in record["columns"].items()}
    assert (passes["step_s"], passes["comm_bytes"], passes["grad_norm"]) == ("time", "count", "check")
    assert record["columns"]["tokens_per_s"]["better"] == "higher"
    assert {row["op"] for row in record["tables"]["collectives"]} == {"all_reduce"}
    assert set(record["phases"]) == {"launch", "start", "build", *PASSES}


def test_throughput_is_that_of_the_slowest_rank_of_each_step(run_suite: Run) -> None:
    record = run_suite(SUITE).record("ddp")
    steps = [max(step) for step in zip(*record["samples"]["step_s"], strict=True)]
    tokens = 8 * 32 * len(steps) / sum(steps)
    assert record["values"]["tokens_per_s"] == pytest.approx(tokens)
    assert record["values"]["tokens_per_s_per_device"] == pytest.approx(tokens / 2)


def test_memory_is_counted_to_the_byte_and_the_same_in_every_trial(run_suite: Run) -> None:
    finished = run_suite(SUITE)
    for case in finished.cases.values():
        if case["status"] == "measured":
            peak = case["values"]["memory_peak"]
            assert peak["low"] == peak["high"] > 4 * 4 * finished.record("ddp")["effective"]["parameters"]


def test_show_and_report_give_the_same_again(run_suite: Run, distbench: Command) -> None:
    finished = run_suite(SUITE)
    shown = json.loads(distbench("show", str(finished.folder), "--json").stdout)
    assert {case["case"]: case for case in shown["cases"]} == finished.cases
    before = (finished.folder / "report.html").read_text()
    assert distbench("report", str(finished.folder)).returncode == 0
    assert (finished.folder / "report.html").read_text() == before


def test_a_case_that_can_not_run_here_is_unsupported_with_the_reason(run_suite: Run) -> None:
    case = run_suite(SUITE).cases["dp/ws2/mb4/fp32"]
    assert case["status"] == "unsupported"
    assert case["reason"] == "nn.DataParallel needs at least 2 CUDA devices"


def test_no_secret_of_the_environment_gets_into_a_file_of_the_run(run_suite: Run) -> None:
    finished = run_suite(SUITE, AWS_SECRET_ACCESS_KEY="canary-7391", NCCL_AUTH_TOKEN="canary-7391")
    files = [file for file in finished.folder.rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if "canary-7391" in file.read_text(errors="replace")]


def test_a_torn_off_run_is_finished_by_resume_with_only_what_is_missing(
    run_suite: Run, distbench: Command
) -> None:
    finished = run_suite(SUITE)
    (lost,) = finished.folder.glob("trials/ddp-*/1/record.json")
    kept = {file: file.read_text() for file in finished.folder.glob("trials/*/*/record.json") if file != lost}
    lost.unlink()
    resumed = distbench("run", "--resume", str(finished.folder))
    assert resumed.returncode == 0, resumed.stderr
    assert lost.is_file()
    assert {file: file.read_text() for file in kept} == kept
    assert "[1/1]" in resumed.stderr
