"""Sends curves to where people look, by the trackers of accelerate. Nothing goes to a network."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

# a user's own settings would send the curves elsewhere, into another run, or wait for other ranks
_FOREIGN = ("WANDB_", "MLFLOW_", "ACCELERATE_", "OTEL_", "DATABRICKS_")
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")

# W&B would keep facts of this machine, which need not be the one that trained
_NO_FACTS = {
    "console": "off",
    "disable_git": True,
    "save_code": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


def export(file: Path) -> None:
    """Send what *file* lists.

    The file holds ``to`` (tensorboard, mlflow or wandb), ``into`` (an empty folder), ``project``
    (a safe name) and ``runs`` (``analysis.curves.Curves``).
    """
    told = json.loads(file.read_text())
    _keep_to_this_machine(Path(told["into"]), file.parent)
    from accelerate import PartialState

    # the trackers ask it whether this is the main process
    PartialState(cpu=True)
    for run in told["runs"]:
        tracker = _tracker(told, run)
        tracker.start()
        tracker.store_init_configuration(run["config"])
        for point in run["points"]:
            tracker.log(point["values"], step=point["step"], **_timed(told["to"], point["time"]))
        tracker.finish()


def _keep_to_this_machine(into: Path, scratch: Path) -> None:
    """Set what the libraries read when they are imported."""
    for name in list(os.environ):
        if name.startswith(_FOREIGN) or name in _RANKS:
            del os.environ[name]
    os.environ |= {
        "DO_NOT_TRACK": "true",
        "HF_HUB_OFFLINE": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_TRACKING_URI": into.as_uri(),
        # the store in files gets no new features, and asks whether one knows
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "GIT_PYTHON_REFRESH": "quiet",
        "WANDB_MODE": "offline",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true",
        **{f"WANDB_{kind}_DIR": str(scratch) for kind in ("CACHE", "CONFIG", "DATA", "ARTIFACT")},
    }


def _tracker(told: dict[str, Any], run: dict[str, Any]) -> Any:
    from accelerate.tracking import MLflowTracker, TensorBoardTracker, WandBTracker

    if told["to"] == "tensorboard":
        # its folder is what TensorBoard calls a run
        return TensorBoardTracker(run["folder"], logging_dir=told["into"])
    if told["to"] == "mlflow":
        tags = {"distbench.kind": run["kind"], "distbench.case": run["group"]}
        return MLflowTracker(told["project"], run_name=run["name"], tags=tags)
    return WandBTracker(
        told["project"],
        name=run["name"],
        group=run["group"],
        job_type=run["kind"],
        dir=told["into"],
        mode="offline",
        settings=_NO_FACTS,
    )


def _timed(to: str, time: float | None) -> dict[str, float | int]:
    """Return how the tracker is told the time of a step; W&B takes that at which it is told the step."""
    if time is None or to == "wandb":
        return {}
    return {"walltime": time} if to == "tensorboard" else {"timestamp": int(time * 1000)}
