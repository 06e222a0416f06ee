"""mpirun on two nodes: they train as one, and no command line has the token."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.network_nodes import Bench
from support.runs import MODELS, QUICK, Finished, run_in

TOKEN = re.compile(r"[0-9a-f]{64}")


@pytest.fixture(scope="module")
def shell(bench: Bench) -> str:
    """A program that takes the arguments of ssh."""
    program = bench.folder / "shell"
    program.write_text(f'#!/bin/sh\nexec {" ".join(bench.ssh())} "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("implementation", ["openmpi", "hydra"])
def test_two_nodes_of_mpirun_train_as_one(
    bench: Bench, shell: str, tmp_path: Path, implementation: str
) -> None:
    command = {
        "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--mca", "plm_rsh_agent", shell],
        "hydra": ["mpiexec.hydra", "-launcher", "ssh", "-launcher-exec", shell],
    }
    options = {
        "hosts": bench.nodes,
        "slots": 1,
        "implementation": implementation,
        "mpirun": command[implementation],
    }
    text = f"{QUICK}strategies: [ddp]\n"
    near = run_in(tmp_path, f"{text}launcher: local\n")
    suite = tmp_path / "far.yaml"
    suite.write_text(f"{text}launcher: {json.dumps({'mpi': options})}\n")
    words = [sys.executable, "-m", "distbench", "run", str(suite), "--out", str(tmp_path / "far")]
    entered = bench.command(bench.nodes[0], "env", f"--chdir={MODELS}", *words)
    with subprocess.Popen(entered, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        shown: set[str] = set()
        while run.poll() is None:
            shown |= command_lines(bench)
            time.sleep(0.2)
        assert run.stdout
        assert run.returncode == 0, run.stdout.read()
    assert [line for line in shown if "distbench.worker agent" in line]
    assert not [line for line in shown if TOKEN.search(line)]
    (folder,) = (tmp_path / "far").iterdir()
    far = Finished(0, "", {}, folder)
    assert far.record("ddp")["nodes"] == {bench.nodes[0]: [0], bench.nodes[1]: [1]}
    losses = [each.record("ddp")["samples"]["loss"] for each in (near, far)]
    assert losses[0] == losses[1]


def command_lines(bench: Bench) -> set[str]:
    """Command line of every process on the nodes."""
    lines = set()
    for pid in (pid for node in bench.nodes for pid in bench.processes(node)):
        try:
            lines.add(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip())
        except OSError:
            # it has ended
            continue
    return lines
