"""Nodes whose Python environments differ: refused with the difference, or allowed by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from contextlib import closing
from pathlib import Path

import pytest
import torch

from support.fault_table import Drill
from support.network_nodes import Bench
from support.runs import MODELS, QUICK, Finished

OTHER = "2.0.0+other"


def environment(bench: Bench, node: str, place: Path, seen: Path) -> Path:
    """Make an environment at *place* of *node*, which is *seen* from here, with all packages of this one.

    Returns:
        Its folder of packages, as it is seen from here.
    """
    done = bench.run(node, sys.executable, "-m", "venv", "--without-pip", str(place))
    assert done.returncode == 0, done.stderr
    (packages,) = seen.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return packages


def another_torch(packages: Path) -> None:
    """Install a torch into *packages* that has another version; its files are those of the one here."""
    own = Path(torch.__file__).parent
    # links: it is half a gigabyte
    subprocess.run(["cp", "-rs", str(own), str(packages)], check=True)
    version = packages / "torch" / "version.py"
    text = version.read_text()
    version.unlink()
    version.write_text(text.replace(str(torch.__version__), OTHER))
    told = packages / f"torch-{OTHER}.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {OTHER}\n")


@pytest.mark.drill("two nodes: another torch on one")
def test_another_torch_on_a_node_is_refused_or_allowed_by_name(tmp_path: Path, drill: Drill) -> None:
    place = tmp_path / "environment"
    with closing(Bench(tmp_path, private=[place])) as bench:
        first, other = bench.nodes
        for node in bench.nodes:
            packages = environment(bench, node, place, tmp_path / "private" / node / "0")
        another_torch(packages)
        python = str(place / "bin" / "python")
        asked = [python, "-c", "import torch; print(torch.__version__, torch.ones(2).sum().item())"]
        assert bench.run(other, *asked).stdout == f"{OTHER} 2.0\n"

        hosts = [f"{node}:1" for node in bench.nodes]
        suite, out = tmp_path / "suite.yaml", tmp_path / "out"
        launcher = f"launcher: {{ssh: {{hosts: {hosts}, shell: {bench.ssh()}}}}}\n"
        suite.write_text(f"{QUICK}strategies: [ddp]\n{launcher}")
        path = os.pathsep.join([str(MODELS), os.environ.get("PYTHONPATH", "")])
        command = ["env", f"--chdir={MODELS}", python, "-m", "distbench", "run", str(suite)]
        command += ["--out", str(out)]
        refused = bench.run(first, *command, PYTHONPATH=path)
        assert refused.returncode == 4
        versions = zip(bench.nodes, (torch.__version__, OTHER), strict=True)
        told = ", ".join(f"{{'torch': '{version}'}} on {node}" for node, version in versions)
        assert f"packages differs: {told}" in refused.stderr
        drill.seen(refused.stderr[refused.stderr.index("packages differs") :])

        shutil.rmtree(out)
        allowed = ["--set", "launcher.ssh.may_differ=[packages]"]
        done = bench.run(first, *command, *allowed, PYTHONPATH=path)
        assert done.returncode == 0, done.stderr
        (run,) = out.iterdir()
        assert Finished(0, "", {}, run).record("ddp")["nodes"] == {first: [0], other: [1]}
