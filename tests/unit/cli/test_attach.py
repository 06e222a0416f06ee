"""A run that goes on elsewhere: handed to an engine or in another terminal, followed, left alone, resumed."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from distbench.api.progress import LineProgress
from distbench.core.registry import PLUGIN_PATH_VARIABLE
from distbench.record.progress import PROGRESS_FILE, ProgressEvent, ProgressLog, ProgressLogReader
from support import fake_slurm
from support.paused_command import Held
from support.runs import MODELS, PLUGINS, QUICK, Done
from support.suites import write_suite

SINGLE_TRIAL_SUITE = "cat > script; echo PENDING > state; echo 17"
"""An sbatch whose job does not begin."""


class LoginNode:
    """A login node of a Slurm of one job."""

    def __init__(self, folder: Path, distbench: Callable[..., Done]) -> None:
        self.folder, self.out, self._distbench = folder, folder / "out", distbench
        self.slurm = folder / "slurm"

    def run(self, *arguments: str) -> Done:
        """Hand a suite over."""
        suite = write_suite(self.folder, f"{QUICK}strategies: [pretended]\n")
        asked = ["--on", "slurm", "--nodes", "2", "--out", str(self.out)]
        return self._distbench("run", str(suite), *asked, *arguments)

    def state(self, words: str) -> None:
        """What Slurm says of the job."""
        self.slurm.joinpath("state").write_text(words)

    @property
    def runs(self) -> list[Path]:
        return sorted(self.out.iterdir()) if self.out.exists() else []


@pytest.fixture
def login(tmp_path, monkeypatch, distbench) -> Callable[..., LoginNode]:
    def made(**commands: str) -> LoginNode:
        folder = fake_slurm.install(tmp_path / "slurm", **commands)
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        return LoginNode(tmp_path, distbench)

    return made


def test_a_run_that_was_handed_over_is_followed_to_its_end(login, distbench):
    node = login()
    # on this Slurm no agent can be started
    done = node.run("--set", "measure.steps=2")
    (run,) = node.runs
    assert done.returncode == 4
    assert f"submitted job 17 to slurm; run folder: {run}" in done.stderr
    assert "srun: error: no agents here" in done.stderr
    info = json.loads((run / "run.json").read_text())
    assert (info["run_id"], info["state"]) == (run.name.rpartition("-")[2], "interrupted")
    assert info["suite"]["measure"]["steps"] == 2
    assert info["command"][:2] == ["distbench", "run"]
    assert (run / "submitted" / "17.sh").read_text() == (node.slurm / "script").read_text()
    again = distbench("attach", info["run_id"], "--out", str(node.out))
    assert (again.returncode, again.stdout) == (4, done.stdout)
    assert "no agents here" in again.stderr, "how it ended is said again"
    assert distbench("check", str(run)).returncode == 0
    resumed = distbench("run", "--resume", str(run), "--retry-failed", "--on", "slurm", "--nodes", "2")
    assert resumed.returncode == 4
    assert (run / "submitted" / "17.err").read_text().count("no agents here") == 2


def test_what_the_nodes_refuse_is_told_here(login):
    done = login().run("--only", "nothing")
    assert done.returncode == 2
    assert "--only nothing: only[0] = 'nothing': matches no case" in done.stderr
    assert "resume with" not in done.stderr


def test_a_run_that_does_not_begin_can_be_named_and_left_and_resumed(login, distbench):
    node = login(sbatch=SINGLE_TRIAL_SUITE)
    done = node.run("--detach", "--until-settled", "--minutes", "3")
    (run,) = node.runs
    quoted = shlex.quote(str(run))
    assert done.returncode == 0
    assert (
        f"job 17 continues; follow it with: distbench attach {quoted}; cancel it with: scancel 17"
        in done.stderr
    )
    script = (node.slurm / "script").read_text()
    assert script.endswith(f"run --resume {quoted} --quiet --until-settled --minutes=3\n")
    name = run.name.rpartition("-")[2]
    shown = distbench("show", name, "--out", str(node.out))
    assert (shown.returncode, "has not started yet" in shown.stderr) == (2, True)
    again = ["run", "--resume", str(run), "--on", "slurm", "--nodes", "3"]
    refused = distbench(*again)
    assert (refused.returncode, "already submitted as job 17 (PENDING)" in refused.stderr) == (2, True)
    node.state("TIMEOUT ExitCode=0:15")
    ended = distbench("attach", name, "--out", str(node.out))
    assert ended.returncode == 143
    assert (
        f"job 17 ended: TIMEOUT; resume with: distbench run --resume {quoted} --on slurm --nodes 2"
        in ended.stderr
    )
    assert "job 17 wrote nothing to" in ended.stderr
    assert distbench(*again, "--set", "launcher.slurm.time=5", "--detach").returncode == 0
    assert "#SBATCH --time=5\n" in (node.slurm / "script").read_text()


def test_the_end_of_a_run_is_awaited_that_is_seen_later_than_that_of_its_job(login, distbench):
    node = login(sbatch=SINGLE_TRIAL_SUITE)
    node.run("--detach")
    (run,) = node.runs
    node.state("COMPLETED ExitCode=0:0")
    command = [sys.executable, "-m", "distbench", "attach", str(run)]
    follower = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert follower.stderr
    assert follower.stderr.readline() == "job 17: COMPLETED; waiting for the last events of the run\n"
    (run / PROGRESS_FILE).write_text('{"kind": "began"}\n{"kind": "ended", "code": 1}\n')
    _, told = follower.communicate()
    assert (follower.returncode, "resume" in told) == (1, False)


def test_cancelling_asks_the_engine(login, distbench):
    node = login(
        sbatch=SINGLE_TRIAL_SUITE, scancel='echo "$@" > cancelled; echo "CANCELLED ExitCode=0:15" > state'
    )
    node.run("--detach")
    (run,) = node.runs
    assert distbench("attach", str(run), "--cancel").returncode == 143
    assert (node.slurm / "cancelled").read_text() == "17\n"


def test_interrupting_leaves_the_job_alone(login):
    node = login(sbatch=SINGLE_TRIAL_SUITE)
    node.run("--detach")
    command = [sys.executable, "-m", "distbench", "attach", str(node.runs[0])]
    variables = {**os.environ, PLUGIN_PATH_VARIABLE: PLUGINS}
    follower = subprocess.Popen(command, cwd=MODELS, env=variables, stderr=subprocess.PIPE, text=True)
    assert follower.stderr
    assert follower.stderr.readline() == "job 17: PENDING\n"
    follower.send_signal(signal.SIGINT)
    _, told = follower.communicate()
    assert (follower.returncode, "job 17 continues; follow it with" in told) == (130, True)
    assert not (node.slurm / "cancelled").exists()


def test_nothing_is_left_of_a_run_that_the_engine_refuses(login):
    node = login(sbatch="echo 'sbatch: error: Invalid account' >&2; exit 1")
    done = node.run()
    assert (done.returncode, "sbatch refused: sbatch: error: Invalid account" in done.stderr) == (4, True)
    assert node.runs == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "suite.yaml", "--nodes", "2"], "--nodes and --detach go with --on"),
        (["run", "--resume", "x", "--on", "slurm", "--only", "a"], "no overrides but --set launcher."),
        (["run", "--on", "slurm", "--nodes", "2"], "run: missing SUITE"),
    ],
)
def test_what_does_not_go_together_says_so(distbench, arguments, told):
    done = distbench(*arguments)
    assert (done.returncode, told in done.stderr) == (2, True)


def test_a_run_in_another_terminal_is_followed(tmp_path, distbench):
    held = Held(tmp_path / "held")
    try:
        command = [sys.executable, "-m", "distbench", "attach", str(held.folder)]
        follower = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        time.sleep(0.1)
        held.let_go()
        _, told = follower.communicate()
        assert held.end()[0] == 0
    finally:
        held.process.kill()
        held.process.communicate()
    assert follower.returncode == 0
    assert "finished, exit code 0; see: distbench show" in told


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path):
    reader, file = ProgressLogReader(tmp_path), tmp_path / PROGRESS_FILE
    file.write_text('{"kind": "note", "text": "a"}\n{"kind": "no')
    assert reader.read_new() == [ProgressEvent("note", "a")]
    with file.open("a") as stream:
        stream.write('te"}\nnonsense\n{"kind": "nonsense"}\n')
    assert reader.read_new() == [ProgressEvent("note")]


def test_a_session_that_is_refused_leaves_no_trace(tmp_path):
    journal = ProgressLog(tmp_path)
    with journal.session() as session:
        journal.write(ProgressEvent("note", "who owns it?"))
        session.exit_code = 2
    assert not (tmp_path / PROGRESS_FILE).exists()
    with pytest.raises(KeyboardInterrupt), journal.session():
        journal.write(ProgressEvent("trial_started", "ddp", 0, 3))
        raise KeyboardInterrupt
    begun = [
        ProgressEvent("began"),
        ProgressEvent("note", "who owns it?"),
        ProgressEvent("trial_started", "ddp", 0, 3),
    ]
    assert ProgressLogReader(tmp_path).read_new() == [*begun, ProgressEvent("ended", code=130)]


def test_what_is_waited_for_is_said_once(capsys):
    lines = LineProgress()
    for text in ("job 1: PENDING", "job 1: PENDING", "job 1: RUNNING"):
        lines.show_waiting(text)
    assert capsys.readouterr().err == "job 1: PENDING\njob 1: RUNNING\n"


def test_news_after_more_than_a_reader_takes_at_once_are_read(tmp_path):
    first, last = (json.dumps({"kind": "note", "text": text}) + "\n" for text in ("the first", "the last"))
    with (tmp_path / PROGRESS_FILE).open("w") as stream:
        # beyond 64 MiB, in lines that no version wrote
        stream.write(first)
        for _ in range(3):
            stream.write("x" * (30 << 20) + "\n")
        stream.write(last)
    reader, texts = ProgressLogReader(tmp_path), []
    for _ in range(4):
        texts += [event.text for event in reader.read_new()]
    assert texts == ["the first", "the last"]
