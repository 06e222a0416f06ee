"""The first look at a GPU: what a step leaves becomes lines, and none keeps the next one from its turn."""

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

GPU = Path(__file__).parents[2] / "gpu"
SAY = """
import time
print('{"check": 1}', flush=True)
open("said", "w").close()
time.sleep(9999)
"""
SAMPLE = Path(__file__).parents[3] / "reports" / "sample"


@pytest.fixture
def first(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(str(GPU))
    return importlib.import_module("first")


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "lines.jsonl").read_text().splitlines()]


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_a_step_that_fails_or_hangs_is_a_line_with_its_reason_and_the_next_one_runs(first, tmp_path):
    look = first.Look(tmp_path, 3600)
    look.run(first.Step("fails", 0, 600, python("raise SystemExit('no such GPU')")))
    child = "import os, sys, time; print(os.getpid(), file=sys.stderr, flush=True); time.sleep(9999)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    look.run(first.Step("hangs", 0, 3, python(script)))
    line = {"check": "a", "values": {"b": 1}}
    look.run(first.Step("says", 0, 600, python(f"print('word'); print({json.dumps(line)!r})")))
    look.run(first.Step("is late", 1e6, 2e6, python("")))
    fails, hangs, says, ended, late = lines(tmp_path)
    assert (fails["step"], fails["ended"], fails["reason"]) == ("fails", "exit code 1", "no such GPU")
    assert (hangs["step"], hangs["ended"]) == ("hangs", "stopped after 3 s")
    assert not is_running(int(hangs["reason"])), "the child of the step is left"
    assert says == {"step": "says", **line}
    assert (ended["step"], ended["ended"], ended["reason"]) == ("says", "exit code 0", "")
    assert (late["step"], late["ended"]) == ("is late", "not reached")
    assert late["reason"].startswith("it needs 1e+06 s, 35")


def test_each_trial_of_a_run_and_each_verdict_is_a_line(first, tmp_path):
    shown = python("import sys; from distbench.cli import main; sys.exit(main(sys.argv[1:]))")
    copy = f"import shutil; shutil.copytree({str(SAMPLE)!r}, 'run')"
    first.Look(tmp_path, 3600).run(first.Step("trials", 0, 600, python(copy)))
    trials = [line for line in lines(tmp_path) if "trial" in line]
    assert {line["job"]["kind"] for line in trials} == {"measure", "check"}
    measured = [line for line in trials if (line["job"]["kind"], line["status"]) == ("measure", "measured")]
    assert measured
    assert all(line["values"]["step_s"] > 0 for line in measured)
    (refused,) = [line["reason"] for line in trials if line["status"] == "unsupported"]
    assert "needs CUDA" in refused
    first.Look(tmp_path / "b", 3600).run(first.Step("cases", 0, 600, [*shown, "show", str(SAMPLE), "--json"]))
    verdicts = [line["equivalence"]["verdict"] for line in lines(tmp_path / "b") if "check" in line]
    assert verdicts and {*verdicts} <= {"equivalent", "equivalent within rounding"}


def test_what_there_is_is_kept_when_it_is_ended(tmp_path):
    (tmp_path / "look.py").write_text(
        "import sys, first\n"
        f"say = {SAY!r}\n"
        "first.steps = lambda *, rehearse: [first.Step('a', 0, 600, [sys.executable, '-c', say])] * 2\n"
        "raise SystemExit(first.main())\n"
    )
    out = tmp_path / "out"
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "look.py"), "--out", str(out)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(GPU), os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
    ) as look:
        while not (out / "a" / "said").exists():
            assert look.poll() is None
        look.send_signal(signal.SIGTERM)
        look.communicate()
    assert look.returncode == 143
    packages, check, ended = lines(out)
    assert packages["step"] == "packages"
    assert (check, ended["ended"]) == ({"step": "a", "check": 1}, "stopped from outside")


def test_every_suite_is_accepted(first, distbench, tmp_path):
    suites = {each.name: each for each in first.steps(rehearse=True) if each.suite}
    assert {"strategies", "check", "gate"} <= suites.keys()
    for name, step in suites.items():
        file = tmp_path / f"{name}.yaml"
        file.write_text(step.suite)
        (verb, *options), rest = step.command[4 : step.command.index("suite.yaml")], ["--out", str(tmp_path)]
        words = [verb, *options, "--dry-run"] if verb == "gate" else ["plan"]
        done = distbench(*words, str(file), *rest)
        assert done.returncode == 0, done.stderr


@pytest.mark.train
@pytest.mark.deep
def test_a_rehearsal_on_a_cpu_reaches_its_steps(tmp_path):
    steps = ("facts", "clock", "profile")
    command = [sys.executable, str(GPU / "first.py"), "--rehearse", "--limit", "3600", *steps]
    subprocess.run(command, env={**os.environ, "OUT": str(tmp_path)}, check=True, capture_output=True)
    found = lines(tmp_path)
    ended = {line["step"]: (line["ended"], line["reason"]) for line in found if "ended" in line}
    assert ended == dict.fromkeys(steps, ("exit code 0", ""))
    values = {line["check"]: line["values"] for line in found if "check" in line}
    assert values["facts"]["forked child"] == 0
    assert 0.5 < values["clock"]["over the wall"] <= 1
    assert values["kernels in rank0.trace.json.gz"] == {"kernels": 0}, "a CPU has none"
    (trial,) = [line for line in found if "trial" in line]
    assert (trial["status"], trial["values"]["profile_step_s"] > 0) == ("measured", True), trial["reason"]
