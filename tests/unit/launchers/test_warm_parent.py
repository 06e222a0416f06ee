"""The fork server of the ranks: ended, stopped, left alone, and what it adopts; no test here needs torch."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from distbench.ipc.launch_spec import LaunchSpec, PythonTarget
from distbench.launchers.base import (
    CancelCheck,
    LaunchError,
    LaunchSession,
    RunningLaunch,
    never_cancelled,
)
from distbench.launchers.local import Local
from distbench.record.run_folder import new_run_id
from distbench.system.machine import RUN_ID_VARIABLE
from support.fault_table import Drill
from support.runs import MODELS, QUICK
from support.shell_jobs import codes, launch_of, sleepers, soon

pytestmark = pytest.mark.usefixtures("chore")


class WarmSite:
    """A site, and launches that run a shell command where ranks would train."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run_id = folder, new_run_id()
        self.site: LaunchSession = Local().open_session(self.run_id)

    def launch(
        self, command: str, is_cancelled: CancelCheck = never_cancelled, **options: object
    ) -> RunningLaunch:
        return self.site.launch(launch_of(self.folder, command, **options), is_cancelled)

    def parent(self) -> psutil.Process:
        """The fork server of this site; sites of other tests may have theirs in this process, too."""
        (found,) = [
            each
            for each in psutil.Process().children()
            if "serve" in each.cmdline() and each.environ().get(RUN_ID_VARIABLE) == self.run_id
        ]
        return found


@pytest.fixture
def warm_site(tmp_path) -> Iterator[WarmSite]:
    made = WarmSite(tmp_path)
    yield made
    made.site.close()


@pytest.mark.drill("the fork server is killed between two trials")
def test_a_warm_parent_that_ended_between_two_trials_costs_neither(warm_site, drill):
    assert codes(warm_site.launch("true")) == [0]
    warm_site.parent().kill()
    began = time.monotonic()
    assert codes(warm_site.launch("true")) == [0]
    drill.noticed(time.monotonic() - began)


def kill_server(
    ground: WarmSite, handle: RunningLaunch, number: signal.Signals, told: str, drill: Drill
) -> None:
    """Send *number* to the fork server in a trial, which is *told* so; the next trial has another."""
    ground.parent().send_signal(number)
    began = time.monotonic()
    with pytest.raises(LaunchError, match=told) as lost:
        codes(handle)
    handle.stop()
    drill.noticed(time.monotonic() - began)
    drill.seen(str(lost.value))
    assert codes(ground.launch("true")) == [0], "another takes its place"


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=pytest.mark.drill(f"the fork server gets {number.name} in a trial"))
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV)
    ],
)
def test_a_warm_parent_that_is_killed_is_named_and_not_a_rank(warm_site, drill, nap, number):
    handle = warm_site.launch(f"sleep {nap}")
    soon(lambda: sleepers(nap), "it never began")
    kill_server(warm_site, handle, number, rf"fork server .* was killed by {number.name}", drill)
    assert not sleepers(nap)


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.drill("the fork server is stopped in a trial")
def test_a_warm_parent_that_is_stopped_is_noticed_within_seconds_and_replaced(warm_site, drill, nap):
    handle = warm_site.launch(f"setsid env -i sleep {nap} & sleep {nap}")
    soon(lambda: len(sleepers(nap)) == 2, "it never began")
    kill_server(warm_site, handle, signal.SIGSTOP, r"did not answer \(it is stopped\)", drill)
    assert not sleepers(nap)


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.drill("the fork server is stopped between two trials")
def test_a_warm_parent_that_was_stopped_between_two_trials_costs_neither(warm_site, drill):
    codes(warm_site.launch("true"))
    stopped = warm_site.parent()
    stopped.suspend()
    began = time.monotonic()
    assert codes(warm_site.launch("true")) == [0]
    drill.noticed(time.monotonic() - began)
    log = (warm_site.folder / "warm_parent.log").read_text()
    assert f"process {stopped.pid}), because it did not answer (it is stopped)" in log
    assert not stopped.is_running()


def test_a_warm_parent_that_is_stopped_ends_with_the_run(warm_site):
    codes(warm_site.launch("true"))
    parent = warm_site.parent()
    parent.suspend()
    warm_site.site.close()
    assert not parent.is_running()


COMMAND = """
import sys
from pathlib import Path
from distbench.ipc.launch_spec import LaunchSpec
from distbench.launchers.local import Local
handle = Local().open_session(sys.argv[1]).launch(LaunchSpec("prepare", Path(sys.argv[2]), processes=1))
while not (exits := handle.wait(1)):
    pass
handle.stop()
sys.exit(exits[0].code)
"""


def command_line(launch: LaunchSpec) -> subprocess.Popen[bytes]:
    """A process that has *launch* made, and ends as it does."""
    line = [sys.executable, "-c", COMMAND, new_run_id(), str(launch.instructions)]
    return subprocess.Popen(line)


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize(
    "whole",
    [
        pytest.param(False, marks=pytest.mark.drill("SIGSTOP 13 s, then SIGCONT, of the command line")),
        pytest.param(True, marks=pytest.mark.drill("SIGSTOP 13 s, then SIGCONT, of all processes of a run")),
    ],
)
def test_a_run_that_was_stopped_and_continued_has_lost_nothing(tmp_path, nap, whole):
    with command_line(launch_of(tmp_path, f"sleep 3; sleep {nap}; true")) as command:
        soon(lambda: psutil.Process(command.pid).children(), "it never began")
        # past the first question whether the fork server is there
        time.sleep(2.5)
        family = [psutil.Process(command.pid)]
        family += family[0].children(recursive=True) if whole else []
        for each in family:
            each.suspend()
        time.sleep(13)
        for each in family:
            each.resume()
        soon(lambda: sleepers(nap), "it did not go on")
        time.sleep(3)
        sleepers(nap)[0].kill()
        assert command.wait(20) == 0


@pytest.mark.parametrize(
    "stopped",
    [
        pytest.param(False, marks=pytest.mark.drill("kill -9 of the command line, which has orphans")),
        pytest.param(
            True, marks=pytest.mark.drill("kill -9 of the command line, the fork server is stopped")
        ),
    ],
)
def test_a_killed_command_line_leaves_nobody_whatever_its_warm_parent_does(tmp_path, drill, nap, stopped):
    launch = launch_of(tmp_path, f"setsid env -i sleep {nap} & sleep {nap}")
    with command_line(launch) as command:
        soon(lambda: len(sleepers(nap)) == 2, "it never began")
        family = psutil.Process(command.pid).children(recursive=True)
        if stopped:
            psutil.Process(command.pid).children()[0].suspend()
        command.kill()
    drill.noticed(soon(lambda: not any(each.is_running() for each in family), "somebody is left"))
    assert not sleepers(nap)


@pytest.mark.drill("a child with a session and no environment of its own outlives its trial")
def test_what_left_its_environment_and_its_session_ends_with_the_trial(warm_site, drill, nap):
    handle = warm_site.launch(f"setsid env -i sleep {nap} & sleep 0.3")
    soon(lambda: sleepers(nap), "it never began")
    assert codes(handle) == [0]
    drill.noticed(soon(lambda: not sleepers(nap), "it outlived its trial"))
    assert codes(warm_site.launch("true")) == [0]


@pytest.mark.drill("Ctrl-C while the fork server imports")
def test_a_launch_that_is_given_up_does_not_wait_for_imports(warm_site, drill, tmp_path):
    slow, done = tmp_path / "slow_to_import.py", tmp_path / "done"
    slow.write_text(f"import pathlib, time; time.sleep(60); pathlib.Path({str(done)!r}).touch()")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    asked: list[float] = []

    def given_up() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 3

    with pytest.raises(LaunchError):
        warm_site.launch(
            "true",
            imports=(slow.stem,),
            target=PythonTarget(environment={"PYTHONPATH": path}),
            is_cancelled=given_up,
        )
    drill.noticed(time.monotonic() - asked[3])
    assert not done.exists()
    assert not [each for each in psutil.Process().children() if slow.stem in each.cmdline()]


def test_a_part_that_another_version_of_a_package_lacks_is_left_to_the_ranks(warm_site):
    assert codes(warm_site.launch("true", imports=("email.a_later_part.of_it", "json"))) == [0]


def test_a_package_that_is_missing_is_named_in_the_first_line(warm_site):
    with pytest.raises(LaunchError) as failed:
        warm_site.launch("true", imports=("no_such_package.part",))
    first = str(failed.value).splitlines()[0]
    assert "exited: ModuleNotFoundError: No module named 'no_such_package'; its log" in first


CHANGED_ENVIRONMENT = """
import sys
from types import SimpleNamespace
own = __import__("os").getpid()
cuda = SimpleNamespace(_is_in_bad_fork=lambda: __import__("os").getpid() != own, is_initialized=lambda: False)
cuda.is_available = lambda: {has_devices}
sys.modules["torch"] = SimpleNamespace(cuda=cuda)
"""


@pytest.mark.parametrize("has_devices", [True, False])
def test_where_an_import_has_called_cuda_unseen_ranks_import_for_themselves(warm_site, tmp_path, has_devices):
    (tmp_path / "calls_cuda.py").write_text(CHANGED_ENVIRONMENT.format(has_devices=has_devices))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    place = PythonTarget(environment={"PYTHONPATH": path})
    assert codes(warm_site.launch("true", imports=("calls_cuda",), target=place)) == [0]
    # a CUDA build of torch on a machine without devices has nothing to lose
    assert ("calls_cuda" in warm_site.parent().cmdline()) is not has_devices


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.drill("Ctrl-C while torch is imported for the preparation")
def test_ctrl_c_while_preparing_is_obeyed_before_the_import_has_ended(tmp_path, drill):
    (tmp_path / "suite.yaml").write_text(QUICK + "launcher: local\nstrategies: [ddp]\n")
    run = [sys.executable, "-m", "distbench", "run", str(tmp_path / "suite.yaml")]
    with subprocess.Popen(
        [*run, "--out", str(tmp_path / "out")],
        cwd=MODELS,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as command:
        soon(lambda: list(tmp_path.glob("out/*/prepare/0/warm_parent.log")), "it never began", 60)
        family = psutil.Process(command.pid).children(recursive=True)
        began = time.monotonic()
        command.send_signal(signal.SIGINT)
        output, _ = command.communicate()
    drill.noticed(time.monotonic() - began)
    drill.seen(output.strip().splitlines()[-1])
    assert command.returncode == 130
    assert "--resume" in output
    assert not list(tmp_path.glob("out/*/prepare/0/rank0.log")), "the import ended first"
    assert not [each for each in family if each.is_running()]
