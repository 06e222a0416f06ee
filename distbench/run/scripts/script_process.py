"""The process of a measured command, and what its ranks have left so far."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from distbench.core.errors import UsageError
from distbench.ipc.launch_spec import PythonTarget
from distbench.ipc.script_files import COMPLETE, ScriptSettings
from distbench.ipc.trial_files import partial_result_file, result_file
from distbench.system import clock
from distbench.system.machine import RUN_ID_VARIABLE, machine_facts
from distbench.system.processes import kill_run, processes_of_run, send_signal
from distbench.worker.scripts.activation import COUNT_VARIABLE

_POLL_S = 0.1
_STOP_S = 20.0
"""Seconds in which a command that is stopped may end by itself, with its ranks."""
_SHELL_WORDS = ("|", "&&", "||", ";", ">", "<", "2>&1")


class UnmeasuredScript(UsageError):
    """No step of a command could be timed; its own exit code is passed on, if it failed."""

    def __init__(self, message: str, exit_code: int) -> None:
        """Tell *message*; *exit_code* is that of the command, negative for the signal that ended it."""
        super().__init__(message)
        if exit_code:
            self.exit_code = exit_code if exit_code > 0 else 128 - exit_code


class ScriptProcess:
    """A command that runs, in a session of its own, so that signals reach all of it."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, run_id: str) -> None:
        self._process, self._folder, self._run_id = process, folder, run_id

    @classmethod
    @contextmanager
    def start(
        cls,
        command: Sequence[str],
        settings: ScriptSettings,
        run_id: str,
        place: PythonTarget,
        *,
        stdout: int | None,
    ) -> Iterator[ScriptProcess]:
        """Start *command*; nothing of it is left when the body ends.

        Args:
            place: Its working directory and variables.
            stdout: Descriptor for its output; None: that of this process.

        Raises:
            UsageError: the command can't be started.
        """
        given = {**os.environ, **place.environment}
        environment = {
            **given,
            **settings.variables(given),
            **clock.clock_environment(),
            RUN_ID_VARIABLE: run_id,
        }
        if not machine_facts()["gpus"]:
            environment[COUNT_VARIABLE] = "1"
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=place.working_directory,
                stdout=stdout,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(f"{command[0]} can't be started: {error.strerror}") from error
        started = cls(process, Path(settings.folder), run_id)
        try:
            yield started
        finally:
            started._end_all()

    def wait(self, *, keep_running: bool, should_stop: Callable[[], bool]) -> Iterator[None]:
        """Yield a few times a second until the command ends, or until everything is measured.

        Args:
            keep_running: Let the script go on after that.
            should_stop: Function that is true once a signal asks to stop.
        """
        measured_at = None
        while self._process.poll() is None:
            yield
            if should_stop():
                self._stop(signal.SIGINT)
                return
            if not keep_running and measured_at is None and self.is_measured():
                # the ranks end by themselves now, and their launcher then does
                measured_at = time.monotonic()
            if measured_at is not None and time.monotonic() - measured_at > _STOP_S:
                self._stop(signal.SIGTERM)
                return
            time.sleep(_POLL_S)

    @property
    def exit_code(self) -> int:
        """Exit code of the command, which has ended."""
        return self._process.wait()

    def is_measured(self) -> bool:
        """True if every rank has measured everything."""
        ranks = world_size(self._folder)
        if ranks is None:
            return False
        results = (_read_result(result_file(self._folder, rank)) for rank in range(ranks))
        return all(result is not None and result["script"]["ended"] == COMPLETE for result in results)

    def _stop(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)

    def _end_all(self) -> None:
        for pid in processes_of_run(self._run_id):
            send_signal(pid, signal.SIGTERM)
        kill_run(self._run_id)
        self._process.wait()


def check_command(command: Sequence[str], verb: str) -> None:
    """Check that *command*, which ``distbench VERB`` is to start, is one command, not a line for a shell.

    Raises:
        UsageError: it is not.
    """
    if not command:
        raise UsageError(
            f"{verb}: missing the command; write it after --, such as: distbench {verb} -- torchrun "
            "--nproc-per-node 2 train.py"
        )
    if found := [word for word in command if word in _SHELL_WORDS]:
        raise UsageError(
            f"{verb}: {found[0]} is for a shell; quote the whole line: distbench {verb} -- sh -c "
            f"{shlex.quote(' '.join(command))}"
        )


def world_size(folder: Path) -> int | None:
    """Number of ranks of the script whose ranks write to *folder*; None: not known yet."""
    for claim in folder.glob("rank*.pid"):
        rank = int(claim.stem.removeprefix("rank"))
        if (result := _read_rank(folder, rank)) is not None:
            return int(result["script"]["world_size"])
    return None


def read_results(folder: Path, ranks: int) -> list[dict[str, Any] | None]:
    """Result of each rank, or what it has left so far; None: nothing."""
    return [_read_rank(folder, rank) for rank in range(ranks)]


def _read_rank(folder: Path, rank: int) -> dict[str, Any] | None:
    return _read_result(result_file(folder, rank)) or _read_result(partial_result_file(folder, rank))


def _read_result(file: Path) -> dict[str, Any] | None:
    try:
        result: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return dict(result)
