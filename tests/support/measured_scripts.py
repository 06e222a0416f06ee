"""Scripts of strangers (``tests/scripts``), measured unchanged, and what that left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from distbench.analysis.script_findings import ScriptFinding, script_findings
from distbench.record import Record
from distbench.record.run_folder import Run

SCRIPTS = Path(__file__).parents[1] / "scripts"


@dataclass(frozen=True)
class Measured:
    """What a ``distbench measure`` left in *folder*."""

    code: int
    shown: str
    errors: str
    folder: Path

    @cached_property
    def run(self) -> Run:
        (folder,) = (self.folder / "out").iterdir()
        return Run(folder)

    @cached_property
    def record(self) -> Record:
        records = self.run.records()
        assert len(records) == 1, f"{self.shown}{self.errors}"
        return records[0]

    @property
    def findings(self) -> dict[str, ScriptFinding]:
        return {finding.kind: finding for finding in script_findings(self.record)}

    def ranks(self, column: str) -> list[Any]:
        """The column of the table of ranks, by rank."""
        return [row[column] for row in self.record.tables["script_ranks"]]

    def own(self, rank: int, what: str = "losses") -> list[float]:
        """Losses or norms that the script itself has written."""
        numbers: list[float] = json.loads((self.folder / f"{what}{rank}.json").read_text())
        return numbers


def measure(folder: Path, *words: str, steps: int = 10, ranks: int = 2, options: str = "") -> Measured:
    """Measure *words*, the name of a script and its arguments, on *ranks* ranks."""
    launcher = [sys.executable] if ranks == 1 else [sys.executable, "-m", "torch.distributed.run"]
    launcher += [] if ranks == 1 else ["--standalone", "--nproc-per-node", str(ranks)]
    of_script = [str(SCRIPTS / f"{words[0]}.py"), *words[1:]]
    return measure_command(folder, *launcher, *of_script, options=f"--steps {steps} --warmup 3 {options}")


def measure_command(folder: Path, *command: str, options: str = "") -> Measured:
    """Measure *command* in *folder*, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "distbench", "measure", *options.split(), "--out", "out", "--", *command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return Measured(done.returncode, done.stdout, done.stderr, folder)
