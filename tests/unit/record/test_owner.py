"""A run folder has one owner, whoever and however often somebody resumes it; every end says how to go on."""

import fcntl
import json
import os
import pty
import shlex
import shutil
import signal
import socket
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distbench.core.errors import UsageError
from distbench.record import lock
from distbench.record.run_folder import Run
from support.paused_command import Held, hear_hangups, until
from support.records import case, measured, stored_run
from support.runs import call

# of several that differ in little, run by tox -e drills and -e deep
LONG_HEARTBEAT = pytest.mark.train, pytest.mark.deep


@pytest.fixture
def held(tmp_path) -> Iterator[Held]:
    started = Held(tmp_path / "it's  held")
    yield started
    started.process.kill()
    started.process.communicate()


@pytest.fixture
def stored(tmp_path) -> Run:
    return stored_run(tmp_path, measured(case()))


def run_state(run: Run) -> str:
    return str(json.loads(call("show", str(run.folder), "--json").stdout)["state"])


@pytest.mark.drill("--resume of a run that is still running")
def test_a_run_that_is_running_is_not_resumed_and_loses_nothing(held, drill):
    began = time.monotonic()
    refused = call("run", "--resume", str(held.folder))
    drill.noticed(time.monotonic() - began)
    drill.seen(refused.stderr)
    assert refused.returncode == 2
    assert f"in use by process {held.process.pid} on {socket.gethostname()} since 20" in refused.stderr
    assert run_state(held.run) == "running"
    copied = Run(Path(shutil.copytree(held.folder, held.folder.parent / "copied")))
    assert run_state(copied) == "interrupted", "a copy is nobody's"
    held.let_go()
    assert held.end()[0] == 0
    assert held.rounds() == [0, 1, 2]
    assert run_state(held.run) == "finished"
    assert (held.folder / lock.LOCK_FILE).read_text() == "", "no host name stays in the folder"


@pytest.mark.drill("kill -9 of the command line, shown and resumed later")
def test_a_killed_run_is_interrupted_and_owned_by_nobody(held, drill):
    held.process.kill()
    held.process.communicate()
    assert run_state(held.run) == "interrupted"
    held.let_go()
    resumed = call("run", "--resume", str(held.folder))
    drill.seen(resumed.stderr)
    assert resumed.returncode == 0, resumed.stderr
    assert f"the previous session was killed: process {held.process.pid} on" in resumed.stderr
    assert held.rounds() == [0, 1, 2]
    assert run_state(held.run) == "finished"


@pytest.mark.parametrize(
    "signals",
    [
        pytest.param([signal.SIGINT], marks=pytest.mark.drill("Ctrl-C, in a folder with an odd name")),
        pytest.param([signal.SIGINT] * 2, marks=pytest.mark.drill("Ctrl-C twice")),
        pytest.param([signal.SIGTERM], marks=(pytest.mark.drill("SIGTERM"), *LONG_HEARTBEAT)),
        pytest.param([signal.SIGHUP] * 2, marks=pytest.mark.drill("SIGHUP, as kernel and shell send it")),
    ],
    ids=["once", "twice", "term", "hangup"],
)
def test_what_is_stopped_prints_a_line_that_resumes_it_in_a_shell(held, drill, signals):
    began = time.monotonic()
    code, _, errors = held.end(*signals)
    drill.noticed(time.monotonic() - began)
    assert code == 130, errors
    (line,) = [line for line in errors.splitlines() if "resume with: " in line]
    drill.seen(line)
    assert line.partition("resume with: ")[2] in call("show", str(held.folder)).stderr
    command = shlex.split(line.partition("resume with: ")[2])
    assert command == ["distbench", "run", "--resume", str(held.folder)]
    assert run_state(held.run) == "interrupted"
    held.let_go()
    resumed = call(*command[1:])
    assert resumed.returncode == 0, resumed.stderr
    assert held.rounds() == [0, 1, 2]


@pytest.mark.drill("Ctrl-C six times in a row")
@pytest.mark.train
@pytest.mark.deep
def test_impatience_loses_nothing(held):
    for _ in range(6):
        held.process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    code, _, errors = held.end()
    assert code in (130, -signal.SIGINT), errors
    assert run_state(held.run) == "interrupted"
    held.let_go()
    assert call("run", "--resume", str(held.folder)).returncode == 0
    assert held.rounds() == [0, 1, 2]


@pytest.mark.drill("two --resume of one run at a time")
@pytest.mark.train
@pytest.mark.deep
def test_of_two_that_resume_a_run_one_does(held, drill):
    held.process.kill()
    held.process.communicate()
    first = held.again()
    second = call("run", "--resume", str(held.folder))
    drill.seen(second.stderr)
    assert second.returncode == 2 and f"in use by process {first.pid}" in second.stderr
    held.let_go()
    _, errors = first.communicate(timeout=120)
    assert first.returncode == 0, errors
    assert {record.status for record in held.run.records()} == {"measured"}
    assert held.rounds() == [0, 1, 2]


@pytest.mark.drill("kill -9 while the report is written")
@pytest.mark.train
@pytest.mark.deep
def test_a_report_that_was_cut_short_loses_no_number(held):
    held.let_go()
    until(lambda: run_state(held.run) == "finished", held.process)
    held.process.kill()
    held.process.communicate()
    assert held.rounds() == [0, 1, 2]
    assert call("report", str(held.folder)).returncode == 0
    assert call("check", str(held.folder)).returncode == 0


class UnreadPipe:
    """A command whose trials have ended, and that waits to print its results into a pipe that is full."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._ours, theirs = os.pipe()
        os.write(theirs, b" " * fcntl.fcntl(theirs, fcntl.F_GETPIPE_SZ))
        self.held = Held(folder, *(words or ("run",)), "--json", stdout=theirs)
        os.close(theirs)
        self.held.let_go()
        # what it waits for in the kernel
        waits = Path(f"/proc/{self.held.process.pid}/wchan")
        until(lambda: "pipe_write" in waits.read_text(), self.held.process)

    def read(self) -> None:
        """Read the results: what is left to do is the report."""
        while not os.read(self._ours, 1 << 16).endswith(b"\n"):
            pass

    def close(self) -> None:
        os.close(self._ours)


@pytest.fixture
def unread_pipe(tmp_path) -> Iterator[UnreadPipe]:
    started = UnreadPipe(tmp_path / "it's  unread")
    yield started
    started.held.process.kill()
    started.held.process.communicate()
    started.close()


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.drill("SIGTERM while the results are printed")),
        pytest.param(
            signal.SIGINT, marks=(pytest.mark.drill("Ctrl-C while the results are printed"), *LONG_HEARTBEAT)
        ),
        pytest.param(
            signal.SIGHUP, marks=(pytest.mark.drill("SIGHUP while the results are printed"), *LONG_HEARTBEAT)
        ),
    ],
)
def test_what_is_stopped_after_its_last_trial_prints_a_line_that_writes_its_report(
    unread_pipe, drill, number
):
    held = unread_pipe.held
    code, _, errors = held.end(number)
    drill.seen(errors.splitlines()[-1])
    assert code == 130, errors
    (line,) = [line for line in errors.splitlines() if line.startswith("stopped")]
    command = shlex.split(line.partition("write the report with: ")[2])
    assert command == ["distbench", "report", str(held.folder)]
    assert run_state(held.run) == "finished" and held.rounds() == [0, 1, 2]
    assert call(*command[1:]).returncode == 0
    assert (held.folder / "report.html").is_file()


@pytest.mark.drill("SIGTERM while the report is written")
@pytest.mark.train
@pytest.mark.deep
def test_what_is_stopped_in_its_report_leaves_none_and_says_how_to_write_it(unread_pipe, drill):
    held = unread_pipe.held
    unread_pipe.read()
    held.process.send_signal(signal.SIGSTOP)
    assert not (held.folder / "report.html").exists()
    code, _, errors = held.end(signal.SIGTERM, signal.SIGCONT)
    drill.seen(errors.splitlines()[-1])
    assert code == 130, errors
    assert f"write the report with: distbench report {shlex.quote(str(held.folder))}" in errors
    assert not list(held.folder.glob("*report.html*"))


@pytest.mark.drill("SIGTERM while a gate prints its verdict")
@pytest.mark.train
@pytest.mark.deep
def test_a_gate_that_is_stopped_while_it_prints_has_its_verdict_later(tmp_path, drill):
    unread = UnreadPipe(tmp_path, "gate", "--self-test")
    code, _, errors = unread.held.end(signal.SIGTERM)
    unread.close()
    drill.seen(errors.splitlines()[-1])
    assert code == 130, errors
    (line,) = [line for line in errors.splitlines() if "resume with: " in line]
    resumed = call(*shlex.split(line.partition("resume with: ")[2])[1:])
    assert resumed.returncode in (0, 3), resumed.stderr


@pytest.mark.drill("Ctrl-C of a gate, in a folder with an odd name")
def test_a_gate_that_is_stopped_prints_a_line_that_resumes_it(tmp_path, drill):
    held = Held(tmp_path / "it's a gate", "gate", "--self-test")
    code, _, errors = held.end(signal.SIGINT)
    assert code == 130, errors
    (line,) = [line for line in errors.splitlines() if "resume with: " in line]
    drill.seen(line)
    held.let_go()
    resumed = call(*shlex.split(line.partition("resume with: ")[2])[1:], "--json")
    assert resumed.returncode in (0, 3), resumed.stderr
    assert json.loads(resumed.stdout)["folder"] == str(held.folder)


@pytest.mark.drill("kill -9 of a gate, and --resume of one that runs")
@pytest.mark.train
@pytest.mark.deep
def test_a_gate_has_one_owner_and_resumes_after_a_kill(tmp_path, drill):
    held = Held(tmp_path, "gate", "--self-test")
    again = ("gate", held.suite, "--self-test", "--resume", str(held.folder), "--json")
    refused = call(*again)
    drill.seen(refused.stderr)
    assert refused.returncode == 2 and f"in use by process {held.process.pid}" in refused.stderr
    held.process.kill()
    held.process.communicate()
    assert {run_state(Run(held.folder / arm)) for arm in ("baseline", "candidate")} == {"interrupted"}
    held.let_go()
    assert call(*again).returncode in (0, 3)
    assert {run_state(Run(held.folder / arm)) for arm in ("baseline", "candidate")} == {"finished"}


@pytest.mark.drill("the terminal closes")
def test_a_run_whose_terminal_closes_is_stopped_with_its_report(tmp_path, drill):
    ours, theirs = pty.openpty()
    stream = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    held = Held(tmp_path, start_new_session=True, preexec_fn=_take_terminal, **stream)
    os.close(theirs)
    began = time.monotonic()
    os.close(ours)
    held.process.wait(timeout=120)
    drill.noticed(time.monotonic() - began)
    assert held.process.returncode == 130
    assert run_state(held.run) == "interrupted"
    assert (held.folder / "report.html").is_file()


def _take_terminal() -> None:
    """Make standard input the terminal that controls this process."""
    hear_hangups()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.drill("the terminal closes under nohup")
@pytest.mark.train
@pytest.mark.deep
def test_a_run_under_nohup_outlives_its_terminal(tmp_path):
    held = Held(tmp_path, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    held.process.send_signal(signal.SIGHUP)
    held.let_go()
    assert held.end()[0] == 0
    assert run_state(held.run) == "finished"


def test_nobody_but_the_owner_gets_the_folder_until_the_owner_lets_go(stored):
    with (
        stored.hold_lock(),
        pytest.raises(UsageError, match=f"in use by process {os.getpid()} on "),
        stored.hold_lock(),
    ):
        pass
    with stored.hold_lock() as killed:
        assert killed is None


def test_what_the_owner_starts_does_not_own_the_folder(stored):
    with stored.hold_lock():
        child = subprocess.Popen(["sleep", "30"], close_fds=False)
    try:
        with stored.hold_lock():
            assert child.poll() is None
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("content", ["", "{", '{"process": -1, "host": "a", "since": "b"}', "[" * 9999])
def test_what_stands_in_the_file_of_a_foreign_folder_is_not_repeated(stored, content):
    file = stored.folder / lock.LOCK_FILE
    with stored.hold_lock():
        file.write_text(content)
        with pytest.raises(UsageError, match="in use by another process"), stored.hold_lock():
            pass


@pytest.mark.drill("a link in the place of the file that owns a run")
def test_the_file_of_a_foreign_folder_leads_to_no_other(stored, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for make in (os.symlink, os.link):
        make(victim, stored.folder / lock.LOCK_FILE)
        with pytest.raises(UsageError, match=r"\.owner: .*remove it"), stored.hold_lock():
            pass
        (stored.folder / lock.LOCK_FILE).unlink()
    assert victim.read_text() == "mine"


def test_a_pipe_in_the_place_of_the_file_stops_no_reader(stored):
    stored.write_info(stored.info())
    os.mkfifo(stored.folder / lock.LOCK_FILE)
    assert stored.info().state == "finished"
    assert lock.is_locked(stored.folder), "who can't tell believes what run.json says"


def test_a_folder_is_owned_for_its_owner_too_and_only_as_long(stored):
    assert not lock.is_locked(stored.folder)
    with stored.hold_lock():
        assert lock.is_locked(stored.folder)
    assert not lock.is_locked(stored.folder)
