"""Curves sent to other tools, and read back by these tools' own readers."""

import dataclasses
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distbench.analysis.training_curves import training_curves
from distbench.cli.commands.export import export_curves
from distbench.core.case import PluginChoice
from distbench.core.errors import InfrastructureError
from support.convergence_records import DDP, REFERENCE, stored, training
from support.records import case, failed, measured

TOOLS = ["tensorboard", "mlflow", "wandb"]
READER = Path(__file__).parents[1] / "support" / "tracker_readers.py"
BEGAN = 1767225600.0  # 2026-01-01T00:00:00Z, when the made-up records do
HOSTILE = "../../../up/\x1b[31m'; drop" + "x" * 10_000


def read_back(tool: str, folder: Path) -> dict[str, Any]:
    done = subprocess.run([sys.executable, READER, tool, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def points(run: dict[str, Any], name: str) -> dict[int, float]:
    found = {step: value for step, value, _ in run["curves"][name]}
    assert len(found) == len(run["curves"][name]), "a point twice"
    return found


def files_outside(into: Path, around: Path) -> set[Path]:
    return {file for file in around.rglob("*") if into not in (file, *file.parents)}


@pytest.fixture
def network() -> Iterator[dict[str, str]]:
    """Variables that send all that goes out to a socket, at which nobody may have knocked at the end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), url)
        none = {"NO_PROXY": "", "no_proxy": ""}
        theirs = {"WANDB_BASE_URL": url, "MLFLOW_TRACKING_URI": url, "OTEL_EXPORTER_OTLP_ENDPOINT": url}
        yield {**proxies, **none, **theirs}
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("tool", TOOLS)
def test_what_a_tool_reads_back_is_what_the_records_hold_and_nothing_goes_to_a_network(
    tool, distbench, tmp_path, network
):
    one, two, reference = training(DDP, 0), training(DDP, 1), training(REFERENCE, 0, "reference")
    trial = measured(DDP, 1234.5)
    run = stored(tmp_path, one, two, reference, trial, failed(case("fsdp")))
    theirs = {"WANDB_MODE": "online", "WANDB_API_KEY": "0" * 40, "MLFLOW_RUN_ID": "no", "WORLD_SIZE": "2"}
    done = distbench("export", str(run.folder), "--to", tool, **network, **theirs)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"4 {tool} runs in {run.folder / tool}; ")
    sent = {curves.name: curves for curves in training_curves(run.records())}
    found = read_back(tool, run.folder / tool)
    assert set(found) == {each.folder if tool == "tensorboard" else name for name, each in sent.items()}
    for record, told in ((one, "seed 1"), (two, "seed 2"), (reference, "seed 1")):
        curves = sent[f"{record.case.name} {told}"]
        mine = found[curves.folder if tool == "tensorboard" else curves.name]
        rows = record.tables["converge_curve"]
        for name, key in (("evaluation/bits_per_byte", "value"), *((k, k) for k in ("loss", "grad_norm"))):
            held = {row["step"]: row[key] for row in rows if row[key] is not None}
            assert points(mine, name) == pytest.approx(held), name
        for axis in ("tokens", "samples", "seconds"):
            assert points(mine, axis)[100] == pytest.approx(rows[-1][axis])
        assert float(mine["config"]["optimizer.lr"]) == 1e-3
        assert int(mine["config"]["seed"]) == record.case.seed
        if tool != "wandb":
            _, _, time = mine["curves"]["loss"][-1]
            assert time == pytest.approx(BEGAN + rows[-1]["seconds"], abs=0.01)
    curves = sent[f"{DDP.name} trial 0"]
    mine = found[curves.folder if tool == "tensorboard" else curves.name]
    assert points(mine, "loss") == {1: 4.0, 2: 3.0, 3: 2.5}
    assert points(mine, "trial/tokens_per_s") == {3: 1234.5}


@pytest.mark.parametrize("tool", TOOLS)
def test_hostile_names_stay_in_the_folder(tool, distbench, tmp_path):
    options = {HOSTILE: {"../..": {"deep": [HOSTILE]}}, "A\n= 'x'": float("nan")}
    of = case(name=HOSTILE, workload=PluginChoice("user", options))
    odd = measured(of, **{"../../" + HOSTILE: 1.0, "not_finite": float("inf")})
    broken = dataclasses.replace(training(of, 0, merit=HOSTILE), reason=HOSTILE)
    broken.tables["converge_curve"][-1]["loss"] = float("nan")
    run = stored(tmp_path, odd, broken, name=HOSTILE)
    into, before = tmp_path / "a'; #%41 é" / "b", files_outside(tmp_path / "x", tmp_path)
    done = distbench("export", str(run.folder), "--to", tool, "--into", str(into))
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert files_outside(into, tmp_path) - before == {into.parent}
    found = read_back(tool, into)
    assert len(found) == 2
    (mine,) = [each for each in found.values() if "seconds" in each["curves"]]
    assert len(points(mine, "loss")) == 100
    assert not any(".." in name for each in found.values() for name in each["curves"])


def test_a_tracker_that_fails_leaves_nothing_and_is_told_in_a_line(tmp_path):
    run = {"folder": "f", "name": "n", "config": {"a": 1}, "points": [{"step": 1, "values": {}, "time": "x"}]}
    with pytest.raises(InfrastructureError, match=r"^export to mlflow: \w+Error: [^\n]+$"):
        export_curves("mlflow", tmp_path / "into", "project", [{**run, "kind": "trials", "group": "g"}])
    assert not (tmp_path / "into").exists()
