"""The commands that a user waits for: help, list, a large plan, a large report."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.runs import QUICK, Finished


def command(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "distbench", *arguments], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    "arguments", [("--help",), ("run", "--help"), ("list", "strategies")], ids=["help", "run", "list"]
)
def test_help_and_list_answer_within_three_tenths_of_a_second(benchmark, arguments: tuple[str, ...]) -> None:
    benchmark.pedantic(command, args=arguments, rounds=10, warmup_rounds=1)
    assert benchmark.stats.stats.median < 0.3


def test_ten_thousand_cases_are_planned_within_five_seconds(benchmark, tmp_path: Path) -> None:
    suite = tmp_path / "large.yaml"
    rates = ", ".join(f"{i}.0e-6" for i in range(1, 10001))
    suite.write_text(
        "workload: transformer\nbatch: {global_batch_size: 8}\nstrategies: [ddp]\nworld_sizes: [1]\n"
        f"axes: {{optimizer.lr: [{rates}]}}\n"
    )
    benchmark.pedantic(command, args=("plan", str(suite), "--json"), rounds=1)
    assert benchmark.stats.stats.median < 5


def test_a_thousand_records_are_reported_within_ten_seconds(
    benchmark, run_suite: Callable[..., Finished]
) -> None:
    finished = run_suite(QUICK + "strategies: [ddp]\n")
    (first,) = finished.folder.glob("trials/ddp-*/0")
    for round_ in range(1, 1000):
        copy = shutil.copytree(first, first.parent / str(round_)) / "record.json"
        copy.write_text(json.dumps({**json.loads(copy.read_text()), "round": round_}))
    benchmark.pedantic(command, args=("report", str(finished.folder)), rounds=1)
    assert benchmark.stats.stats.median < 10
