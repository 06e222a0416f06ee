"""A command line in a process of its own, held in the middle of its trials until it is let go, or ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distbench.core.registry import PLUGIN_PATH_VARIABLE
from distbench.record.run_folder import Run
from support.pretended_suites import held_by
from support.runs import PLUGINS


class Held:
    """A command (``run``, ``gate``) whose trials of the second round do not end while a file exists."""

    def __init__(self, folder: Path, *words: str, **process: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.hold = folder / "hold"
        self.hold.write_text("hang")
        (folder / "suite.yaml").write_text(held_by(str(self.hold)))
        command, *options = words or ("run",)
        self.suite, out = str(folder / "suite.yaml"), folder / "out"
        self.process = _started(command, self.suite, *options, "--out", str(out), **process)
        # the runs of a gate are one level down; a search of all levels would step into files being written
        trials = ("*/trials/*/1/trial.json", "*/*/trials/*/1/trial.json")
        until(lambda: any(any(out.glob(pattern)) for pattern in trials), self.process)
        (self.folder,) = out.iterdir()
        self.run = Run(self.folder)

    def again(self, *options: str) -> subprocess.Popen[str]:
        """Resume the run in a process of its own; return it when it is held in the same trial."""
        (trial,) = self.folder.glob("trials/*/1")
        (trial / "trial.json").unlink(missing_ok=True)
        process = _started("run", "--resume", str(self.folder), *options)
        until((trial / "trial.json").is_file, process)
        return process

    def let_go(self) -> None:
        """Have the held trial end, and all later ones."""
        self.hold.unlink()

    def end(self, *signals: int) -> tuple[int, str, str]:
        """Send *signals*, each when the one before has been taken; return exit code, output and errors."""
        for number in signals:
            self.process.send_signal(number)
            time.sleep(0.1)
        out, errors = self.process.communicate(timeout=120)
        return self.process.returncode, out, errors

    def rounds(self) -> list[int]:
        """Rounds that have a record."""
        return sorted(record.round for record in self.run.records())


def _started(*words: str, **process: Any) -> subprocess.Popen[str]:
    usual: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # without a buffer nothing is left to be printed at the end
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        [sys.executable, "-m", "distbench", *words],
        env={**buffered, PLUGIN_PATH_VARIABLE: PLUGINS},
        **(usual | {"preexec_fn": hear_hangups} | process),
    )


def hear_hangups() -> None:
    """Undo a ``nohup`` under which the tests run."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def until(condition: Callable[[], object], process: subprocess.Popen[str], seconds: float = 120) -> None:
    """Wait until *condition* holds, while *process* lives."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        assert process.poll() is None or condition(), process.communicate()
        time.sleep(0.02)
