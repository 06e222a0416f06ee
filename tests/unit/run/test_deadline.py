"""The time limit of an allocation: the trial in flight ends, no other is begun, and the run is resumed."""

import json
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from distbench.launchers.slurm.queue import job_seconds_left
from distbench.run import StopRequest, ignore_time_warning
from distbench.run.interruption import AllocationTimeLimit
from support import fake_slurm
from support.paused_command import Held
from support.runs import QUICK, call
from support.suites import write_suite

SHORT_ALLOCATION = QUICK.replace("trials: 1", "trials: 2") + "strategies: [pretended]\nlauncher: pretend\n"


@pytest.fixture
def held(tmp_path) -> Iterator[Held]:
    started = Held(tmp_path / "held")
    yield started
    started.process.kill()
    started.process.communicate()


def test_the_trial_in_flight_ends_and_no_other_is_begun(held):
    held.process.send_signal(signal.SIGUSR1)
    held.let_go()
    code, _, errors = held.end()
    assert code == 75
    assert f"stopped after the trial in flight; resume with: distbench run --resume {held.folder}" in errors
    assert (held.rounds(), held.run.info().state) == ([0, 1], "interrupted")
    resumed = call("run", "--resume", str(held.folder))
    assert resumed.returncode == 0, resumed.stderr
    assert held.rounds() == [0, 1, 2]


def test_a_signal_that_ends_the_run_counts_after_one_that_lets_it_end(held):
    code, _, errors = held.end(signal.SIGUSR1, signal.SIGTERM)
    assert (code, "stopped; resume with" in errors) == (130, True)
    assert held.rounds() == [0, 1]


def test_a_gate_ends_after_the_trial_in_flight_and_is_resumed(tmp_path):
    held = Held(tmp_path / "held", "gate", "--self-test")
    held.process.send_signal(signal.SIGUSR1)
    held.let_go()
    code, out, errors = held.end()
    assert code == 75, errors
    assert "interrupted" in out
    (_, again) = errors.split("stopped after the trial in flight; resume with: ")
    (candidate,) = held.folder.glob("candidate/trials/*")
    assert sorted(each.parent.name for each in candidate.glob("*/record.json")) == ["0", "1"]
    resumed = call(*shlex.split(again.splitlines()[0])[1:], "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["state"] == "finished"


@pytest.fixture
def short_allocation(tmp_path, monkeypatch) -> tuple[Path, Path]:
    """A suite and a run of it, in an allocation that has ten seconds left by now."""
    suite, out = tmp_path / "suite.yaml", tmp_path / "out"
    suite.write_text(SHORT_ALLOCATION)
    assert call("run", str(suite), "--out", str(out)).returncode == 0
    (stored,) = out.iterdir()
    folder = fake_slurm.install(tmp_path / "slurm", squeue="echo 0:10")
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    return suite, stored


def test_a_suite_that_compare_runs_ends_as_a_run_does(short_allocation):
    suite, stored = short_allocation
    done = call("compare", str(stored), str(suite), "--out", str(stored.parent))
    (begun,) = set(stored.parent.iterdir()) - {stored}
    assert done.returncode == 75
    assert f"stopped after the trial in flight; resume with: distbench run --resume {begun}" in done.stderr
    assert done.stdout == ""


def test_a_gate_against_a_stored_run_can_only_be_started_again(short_allocation):
    suite, stored = short_allocation
    done = call("gate", str(suite), "--baseline", str(stored), "--out", str(stored.parent))
    assert done.returncode == 75
    assert "start it again with the same command and more time" in done.stderr
    assert "round 1" not in done.stderr


def test_the_signal_ends_nothing_before_and_after_the_trials():
    before = signal.getsignal(signal.SIGUSR1)
    with ignore_time_warning():
        signal.raise_signal(signal.SIGUSR1)
        with StopRequest().handle_signals() as stop:
            assert not stop.is_set
            signal.raise_signal(signal.SIGUSR1)
            assert stop.is_set
        signal.raise_signal(signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) is before


@pytest.mark.parametrize(
    ("left", "code", "told"),
    [
        ("0:10", 75, " are left of the time limit around this run"),
        ("0:50", 0, ""),
        ("UNLIMITED", 0, ""),
    ],
)
def test_no_trial_is_begun_that_would_not_end_before_the_limit(
    tmp_path, monkeypatch, distbench, left, code, told
):
    folder = fake_slurm.install(tmp_path / "slurm", squeue=f'[ "$2" = --jobs=17 ] && echo {left}')
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    suite = write_suite(tmp_path, SHORT_ALLOCATION)
    done = distbench("run", str(suite), "--out", str(tmp_path / "out"), SLURM_JOB_ID="17")
    assert (done.returncode, told in done.stderr) == (code, True)
    assert ("round 1: measured" in done.stderr) == (code == 0)


def test_a_trial_is_not_begun_that_took_longer_before(tmp_path, monkeypatch):
    folder = fake_slurm.install(tmp_path / "slurm", squeue="echo 2:00")
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert AllocationTimeLimit().refusal(60.0) == ""
    assert "the next trial takes about 2 min 00 s" in AllocationTimeLimit().refusal(120.0)
    # the limit was raised meanwhile
    deadline = AllocationTimeLimit()
    fake_slurm.install(folder, squeue="echo 20:00")
    assert deadline.refusal(120.0) == ""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:03:04", 93784.0), ("2:03:04", 7384.0), ("3:04", 184.0), ("INVALID", None), ("", None)],
)
def test_slurm_says_how_much_time_is_left(tmp_path, monkeypatch, text, seconds):
    folder = fake_slurm.install(tmp_path / "slurm", squeue=f"echo {text}")
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    assert job_seconds_left("17") == seconds
