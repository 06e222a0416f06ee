"""The package as it is installed, away from its checkout."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.environments import beside

ROOT = Path(__file__).parents[2]


@pytest.mark.deep
def test_what_a_wheel_installs_reads_a_run_and_trains(tmp_path):
    wheels, suite = tmp_path / "wheels", tmp_path / "suite.yaml"
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", str(wheels), str(ROOT)], check=True)
    (wheel,) = wheels.iterdir()
    python = beside(tmp_path / "there") / "bin" / "python"
    subprocess.run([*pip, "--python", str(python), "install", "-q", "--no-deps", str(wheel)], check=True)

    def run(*arguments: str) -> str:
        command = [str(python), "-m", "distbench", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    program = [str(python), "-c", "import distbench; print(distbench.__file__)"]
    where = subprocess.check_output(program, cwd=tmp_path, text=True)
    assert Path(where.strip()).is_relative_to(tmp_path / "there")
    sample = str(ROOT / "reports" / "sample")
    assert "https://arxiv.org/abs/1910.02054" in run("list", "strategies", "zero")
    assert "Train with ddp on 2 devices" in run("show", sample)
    assert "def prepare(model, layers, device)" in run("adopt", sample, "ddp/ws2/mb8/fp32", "--as", "torch")
    suite.write_text(
        "workload: {mlp: {}}\nbatch: {global_batch_size: 8}\nworld_sizes: [2]\nstrategies: [ddp]\n"
        "measure: {warmup: 1, steps: 2, trials: 1}\n"
    )
    assert "ddp   measured" in run("run", str(suite))
    (page,) = (tmp_path / "reports").glob("*/report.html")
    assert "plotly" in page.read_text()
