"""A run over two nodes, which something will happen to in the middle of the second of its three trials."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from distbench.core.registry import PLUGIN_PATH_VARIABLE
from distbench.ipc.trial_files import progress_file, read_progress
from distbench.system.machine import RUN_ID_VARIABLE
from support.network_nodes import Bench
from support.runs import MODELS, PLUGINS, QUICK, Finished
from support.shell_jobs import soon

SUITE = (
    QUICK.replace("trials: 1", "trials: 3").replace("steps: 3", "steps: 12").replace("step: 30", "step: 8")
    + "strategies: [sleepy]\n"
)


@dataclass
class Faulty:
    """A run on two nodes, one rank on each, started by ssh."""

    bench: Bench
    shell: list[str]
    folder: Path
    suite: str = SUITE
    timeout_s: float = 60.0
    options: str = ""
    """More of the launcher, after a comma."""
    variables: dict[str, str] = field(default_factory=dict)
    """Of the command."""
    kept: Path | None = None
    """Where this process finds what the command has in its folder ``out``; None: there."""
    began: float = 0.0
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        hosts = [f"{node}:1" for node in self.bench.nodes]
        suite = self.folder / "suite.yaml"
        options = f"start_timeout: {self.timeout_s}{self.options}"
        launcher = f"{{hosts: {hosts}, shell: {self.shell}, {options}}}"
        suite.write_text(f"{self.suite}launcher: {{ssh: {launcher}}}\n")
        self._command("run", str(suite), "--out", str(self.folder / "out"))
        soon(lambda: self._is_at(1, "time", 2), f"round 1 never began: {self.log()}", 180)

    def resume(self, *options: str) -> int:
        """Exit code of the resumed run."""
        self._command("run", "--resume", str(self.folder / "out" / self.run.name), *options)
        return self.processes[-1].wait(240)

    def strikes(self) -> None:
        """The fault happens now."""
        self.began = time.monotonic()

    def noticed(self, within: float) -> float:
        """Wait until the trial of the fault has its record."""
        file = self.record_file(1)
        soon(file.exists, f"nobody noticed: {self.log()}", within)
        return time.monotonic() - self.began

    def ends(self) -> int:
        """Wait until the command has ended; its exit code."""
        return self.processes[-1].wait(240)

    def record(self, number: int) -> dict[str, Any]:
        return Finished.read(self.record_file(number))

    def record_file(self, number: int) -> Path:
        (case,) = (self.run / "trials").iterdir()
        return case / str(number) / "record.json"

    def statuses(self) -> list[str]:
        return [self.record(number)["status"] for number in range(3) if self.record_file(number).exists()]

    @property
    def run(self) -> Path:
        """Its folder, for this process."""
        (run,) = self._out.iterdir()
        return run

    def found(self, node: int, *words: str) -> psutil.Process:
        """The first process on *node* (its number) whose command line has all *words*."""
        for pid in self.bench.processes(self.bench.nodes[node]):
            line = psutil.Process(pid).cmdline()
            if all(word in line for word in words) and "sh" not in Path(line[0]).name:
                return psutil.Process(pid)
        raise AssertionError(f"no {words} on {self.bench.nodes[node]}")

    def rank(self, node: int) -> psutil.Process:
        """The rank on *node*: the child of its fork server."""
        (rank,) = self.found(node, "distbench.worker", "serve").children()
        return rank

    def left(self, run_id: str = "") -> list[str]:
        """Command lines of workers that are on a node, of any run or of that with *run_id*."""
        lines = []
        for node in self.bench.nodes:
            for pid in self.bench.processes(node):
                try:
                    process = psutil.Process(pid)
                    line, tag = " ".join(process.cmdline()), process.environ().get(RUN_ID_VARIABLE, "")
                except psutil.NoSuchProcess:
                    continue
                lines += [line] if "distbench.worker" in line and tag.startswith(run_id) else []
        return lines

    def log(self) -> str:
        return (self.bench.folder / f"{self.bench.nodes[0]}.log").read_text()[-3000:]

    @property
    def _out(self) -> Path:
        return self.kept or self.folder / "out"

    def _is_at(self, number: int, phase: str, step: int) -> bool:
        seen = [read_progress(progress_file(folder, 1)) for folder in self._out.glob(f"*/trials/*/{number}")]
        return any(sign and sign.phase == phase and sign.step >= step for sign in seen)

    def _command(self, *words: str) -> None:
        path = os.pathsep.join([str(MODELS), os.environ.get("PYTHONPATH", "")])
        command = ["env", f"--chdir={MODELS}", sys.executable, "-m", "distbench", *words]
        variables = {"PYTHONPATH": path, PLUGIN_PATH_VARIABLE: PLUGINS, **self.variables}
        self.processes.append(self.bench.start(self.bench.nodes[0], *command, **variables))


@contextmanager
def prepared(*arguments: Any, **options: Any) -> Iterator[Faulty]:
    """A run that has not been started; at the end nobody is left of it."""
    made = Faulty(*arguments, **options)
    yield made
    for process in made.processes:
        process.kill()
    soon(lambda: not made.left(), f"processes were left: {made.left()}", 40)
