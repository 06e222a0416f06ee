"""The checks of tests/gpu can be collected anywhere, and their report says what became of each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).parents[2] / "gpu"
CHECKS = """
import os, signal, subprocess
import pytest

@pytest.mark.minutes(1)
def test_holds(check, gpu_report):
    gpu_report.note({"nccl": "2.99", "threads": 4})
    check.figure("step", 0.12345678, "s")

@pytest.mark.minutes(1)
def test_breaks(check):
    check.figure("kept", True)
    assert False, "first | line"

@pytest.mark.minutes(0.002)
def test_hangs():
    subprocess.run(["sleep", "600"])

@pytest.mark.minutes(1)
@pytest.mark.host_memory(1 << 40)
def test_wants_more_than_there_is():
    pass

@pytest.mark.minutes(1)
@pytest.mark.needs("no_such_module")
def test_needs_a_module():
    pass

@pytest.mark.minutes(1)
@pytest.mark.cuda
def test_asks_for_a_gpu():
    pass

@pytest.mark.minutes(1)
def test_is_killed():
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.minutes(1)
def test_comes_too_late():
    pass
"""


def test_every_check_is_collected_and_refused_without_a_gpu(tmp_path):
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(GPU),
        "-p",
        "no:cacheprovider",
        "--gpu-report",
        str(tmp_path),
    ]
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    variables.pop("DISTBENCH_REHEARSAL", None)
    done = subprocess.run(command, env=variables, cwd=GPU.parent.parent, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert "the checks of tests/gpu need an NVIDIA GPU" in done.stderr
    assert not [line for line in done.stdout.splitlines() if "rror" in line]
    assert not list(tmp_path.iterdir()), "what an earlier run has left stays"


def test_the_report_of_a_killed_run_says_what_became_of_each_check(pytester, monkeypatch):
    pytester.makepyfile(test_checks=CHECKS)
    monkeypatch.setenv("PYTHONPATH", str(GPU.parent), prepend=os.pathsep)
    monkeypatch.setenv("DISTBENCH_REHEARSAL", "1")
    pytester.runpytest_subprocess("-p", "support.gpu_checks", "--gpu-report", "told")
    report = json.loads((pytester.path / "told" / "report.json").read_text())
    checks = {check["name"].removeprefix("test_checks::test_"): check for check in report["checks"]}
    assert {name: check["verdict"] for name, check in checks.items()} == {
        "holds": "passed",
        "breaks": "failed",
        "hangs": "timed out",
        "wants_more_than_there_is": "skipped",
        "needs_a_module": "skipped",
        "asks_for_a_gpu": "skipped",
        "is_killed": "running",
        "comes_too_late": "not reached",
    }
    assert report["nccl"] == "2.99" and "threads" not in report
    assert checks["needs_a_module"]["reason"] == "needs no_such_module, not installed here"
    assert checks["breaks"]["figures"] == {"kept": [True, ""]}
    summary = (pytester.path / "told" / "summary.md").read_text()
    assert "A rehearsal on a CPU" in summary
    assert "| test_checks::test_holds | passed |" in summary and "step: 0.1235 s" in summary
    assert "first / line" in summary and "GiB of host memory, this machine has" in summary
