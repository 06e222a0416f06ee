"""Curves sent to other tools: names of folders, and what is refused; no tracker is imported."""

import dataclasses
import importlib.metadata
import os
import subprocess
import sys

from distbench.analysis.training_curves import training_curves
from distbench.cli import main
from support.convergence_records import DDP, stored, training
from support.records import failed, measured


def test_cases_of_one_name_and_seeds_of_one_case_get_folders_of_their_own():
    other = dataclasses.replace(DDP, threads=2)
    records = [measured(DDP), measured(DDP, round_=1), measured(other)]
    records += [training(DDP, 0), training(DDP, 1), training(other, 0)]
    folders = [curves.folder for curves in training_curves(records)]
    assert len(set(folders)) == 6
    assert folders[0] == f"trials/ddp-ws2-mb4-fp32-{DDP.id}/trial-0"
    assert folders[4] == f"convergence/ddp-ws2-mb4-fp32-{DDP.id}/seed-2"


def test_what_can_not_be_exported_is_said_before_anything_is_written(tmp_path, capsys, monkeypatch):
    run = stored(tmp_path, measured(DDP))
    empty = stored(tmp_path / "empty", failed(DDP))
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").touch()
    before = set(tmp_path.rglob("*"))

    def told(*arguments: str) -> str:
        assert main(["export", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    def installed(name: str) -> str:
        if name in missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return "1"

    missing: set[str] = set()
    monkeypatch.setattr(importlib.metadata, "version", installed)
    assert "--to = 'mlfow': did you mean 'mlflow'?" in told(str(run.folder), "--to", "mlfow")
    assert "no such run" in told("none", "--to", "wandb", "--out", str(tmp_path))
    assert "Missing option '--to'" in told(str(run.folder))
    assert "no curves: no trial of this run was measured" in told(str(empty.folder), "--to", "wandb")
    assert "not empty" in told(str(run.folder), "--to", "wandb", "--into", str(full))
    assert "can't be used: " in told(str(run.folder), "--to", "wandb", "--into", str(full / "mine" / "x"))
    missing |= {"accelerate", "wandb"}
    refusal = told(str(run.folder), "--to", "wandb")
    assert "--to wandb: needs accelerate, wandb; install it" in refusal
    assert refusal.endswith("pip install -e '.[trackers]'")
    assert set(tmp_path.rglob("*")) == before


def test_exporting_imports_no_tracker_into_the_parent():
    code = "import sys, distbench.cli.commands.export, distbench.cli.commands.export; "
    code += "import distbench.analysis.training_curves as c; "
    code += "print(sorted({'torch', 'accelerate', 'mlflow', 'wandb', 'tensorboard'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
