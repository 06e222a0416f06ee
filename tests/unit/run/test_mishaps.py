"""What distbench itself raises in one trial is that trial's failure; a full disk ends the run."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distbench.record import Record
from distbench.record.run_folder import Run
from support.pretended_suites import pretended_suite
from support.runs import PLUGINS, Done, call

SUITE = pretended_suite(
    world_sizes="[1]",
    measure="{steps: STEPS, trials: 3}",
    metrics="[steptime, throughput METRIC]",
    launcher='{faulty: {file: "FAULT", rounds: [1], here: true}}',
    strategies="[pretended]",
)

# a suite that names no metrics takes all that are found, so that this one is found by these tests alone
FAULTY_PLUGIN = '''
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from distbench.core.case import Case
from distbench.metrics.base import Column, Metric, Sampler, TrialData


@dataclass(frozen=True)
class Clumsy(Metric):
    """Raises on the parent's side, or gives it what can't be stored."""

    columns: ClassVar[tuple[Column, ...]] = (
        Column("clumsy", "", "higher", "first", "Never a number that can be stored."),
    )
    at: str = "summary"
    """summary, sampler or value."""

    def summary(self, trial: TrialData) -> Mapping[str, Any]:
        if self.at == "summary":
            raise ZeroDivisionError("a metric divides by zero")
        return {"clumsy": {1}} if self.at == "value" else {}

    def sampler(self, case: Case) -> Sampler | None:
        if self.at == "sampler":
            raise RuntimeError("a sampler can't start")
        return None
'''


@contextmanager
def files_of(most: int) -> Iterator[None]:
    """No file may grow beyond *most* bytes: what a full disk looks like to a program."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class FaultyRun:
    """A run of three trials, in the second of which something goes wrong."""

    def __init__(self, folder: Path, fault: str = "", metric: str = "", steps: int = 2) -> None:
        self.out, self.file = folder / "out", folder / "fault"
        if fault:
            self.file.write_text(fault)
        text = SUITE.replace("FAULT", str(self.file)).replace("STEPS", str(steps))
        (folder / "suite.yaml").write_text(
            text.replace("METRIC", f", clumsy: {{at: {metric}}}" if metric else "")
        )
        self.suite = str(folder / "suite.yaml")
        (folder / "plugins" / "metrics").mkdir(parents=True)
        (folder / "plugins" / "metrics" / "clumsy.py").write_text(FAULTY_PLUGIN)
        self.plugins = os.pathsep.join([PLUGINS, str(folder / "plugins")])

    def run(self, *arguments: str) -> Done:
        words = ("run", self.suite, "--out", str(self.out), *arguments)
        return call(*words, DISTBENCH_PLUGINS=self.plugins)

    @property
    def stored(self) -> Run:
        (folder,) = self.out.iterdir()
        return Run(folder)

    def records(self) -> list[Record]:
        return sorted(self.stored.records(), key=lambda record: record.round)


def error_text(record: Record, what: str) -> None:
    """*record* is of a trial that distbench failed, by *what*."""
    assert record.status == "crashed"
    assert record.reason == f"internal error in distbench or a plug-in: {what}"
    assert record.failure is not None
    assert (record.failure.rank, record.failure.phase) == (None, "distbench")
    assert "Traceback" in record.failure.traceback and what.partition(":")[0] in record.failure.traceback


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("launch raises", marks=pytest.mark.drill("the launcher raises when it starts a trial")),
        pytest.param(
            "wait raises", marks=pytest.mark.drill("the launcher raises while it waits for a trial")
        ),
    ],
)
def test_what_a_launcher_raises_fails_its_trial_and_the_suite_goes_on(tmp_path, drill, fault):
    made = FaultyRun(tmp_path, fault)
    done = made.run()
    drill.seen(next(line for line in done.stderr.splitlines() if "crashed" in line))
    assert done.returncode == 1 and "report: " in done.stdout
    first, second, third = made.records()
    assert (first.status, third.status) == ("measured", "measured")
    error_text(second, "ValueError: 40 is not a valid Signals")
    made.file.unlink()
    assert call("run", "--resume", str(made.stored.folder), "--retry-failed").returncode == 0


@pytest.mark.drill("the launcher raises while it prepares")
def test_what_is_raised_while_preparing_fails_the_trials_that_need_it(tmp_path, drill):
    made = FaultyRun(tmp_path, "prepare raises")
    done = made.run()
    drill.seen(done.stderr)
    assert done.returncode == 1
    assert {record.status for record in made.records()} == {"prepare_failed"}
    made.file.unlink()
    assert call("run", "--resume", str(made.stored.folder)).returncode == 0


@pytest.mark.parametrize(
    ("at", "what"),
    [
        pytest.param(
            "summary",
            "ZeroDivisionError: a metric divides by zero",
            marks=pytest.mark.drill("a metric raises in the parent"),
        ),
        pytest.param(
            "value",
            "TypeError: Object of type set is not JSON serializable",
            marks=pytest.mark.drill("a metric gives what can't be stored"),
        ),
        pytest.param("sampler", "RuntimeError: a sampler can't start"),
    ],
    ids=["summary", "value", "sampler"],
)
def test_what_a_metric_raises_fails_each_trial_of_its_own(tmp_path, drill, at, what):
    made = FaultyRun(tmp_path, metric=at)
    done = made.run()
    drill.seen(next(line for line in done.stderr.splitlines() if "crashed" in line))
    assert done.returncode == 1
    records = made.records()
    assert len(records) == 3
    for record in records:
        error_text(record, what)


def test_a_trial_that_nobody_watches_is_ended(tmp_path):
    made = FaultyRun(tmp_path, "hang", metric="sampler")
    made.run()
    assert made.file.with_suffix(".stopped").exists()


@pytest.mark.drill("the disk is full in the middle of a trial")
def test_a_full_disk_ends_the_run_with_the_line_to_resume_it(tmp_path, drill):
    made = FaultyRun(tmp_path, steps=1_500)
    with files_of(10_000):
        done = made.run()
    drill.seen(done.stderr.splitlines()[-1])
    assert done.returncode == 4
    (error,) = (line for line in done.stderr.splitlines() if "distbench: error: " in line)
    assert "everything stored so far is intact" in error
    assert error.endswith(f"free some space, then resume with: distbench run --resume {made.stored.folder}")
    assert made.records() == []
    assert not list(made.stored.folder.rglob(".*.parquet*"))
    assert call("run", "--resume", str(made.stored.folder)).returncode == 0
    assert len(made.records()) == 3


@pytest.mark.drill("ranks leave no byte of the disk")
def test_a_disk_that_ranks_have_filled_fails_no_trial(tmp_path, drill):
    made = FaultyRun(tmp_path, "fill")
    made.out.mkdir()
    run = f"{sys.executable} -m distbench run"
    script = (
        f"mount -t tmpfs -o size=66m tmpfs {made.out}; {run} {made.suite} --out {made.out}; echo code $?; "
        # room for what says that the session has begun, and not for a trial
        f"truncate -s -512K {made.out}/*/trials/*/1/ballast; {run} --resume {made.out}/*; echo code $?; "
        f"ls {made.out}/*/trials/*/*/record.json | wc -l"
    )
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        env={**os.environ, "DISTBENCH_PLUGINS": made.plugins},
        capture_output=True,
        text=True,
        check=False,
    )
    lost, unbegun = (line for line in done.stderr.splitlines() if "distbench: error: " in line)
    drill.seen(lost)
    assert [line for line in done.stdout.splitlines() if line.startswith("code")] == ["code 4"] * 2
    # what ended before the disk was full
    assert done.stdout.splitlines()[-1] == "1"
    assert (
        ": its disk is full (0 B free): measure pretended/ws1/mb8/fp32, round 2, failed (rank 0 in " in lost
    )
    assert (
        "(512 KiB free): measure pretended/ws1/mb8/fp32, round 2, is not started; everything stored"
        in unbegun
    )
    for line in (lost, unbegun):
        assert line.endswith(f"then resume with: distbench run --resume {made.out}/{line.split('/')[-1]}")
        assert (
            "; the remaining 2 trials (up to " in line
            and " each so far) need 64.0 MiB of free space; " in line
        )


@pytest.mark.drill("the disk is full while the report is written")
def test_numbers_are_printed_even_if_the_report_finds_no_room(tmp_path, drill):
    made = FaultyRun(tmp_path)
    with files_of(200_000):
        done = made.run()
    drill.seen(done.stderr.splitlines()[-1])
    assert done.returncode == 4
    assert "pretended" in done.stdout and "measured" in done.stdout
    assert f"then write the report with: distbench report {made.stored.folder}" in done.stderr
    assert call("report", str(made.stored.folder)).returncode == 0
    assert (made.stored.folder / "report.html").is_file()
