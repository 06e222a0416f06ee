"""Export curves through the trackers of accelerate. Nothing goes to a network."""

import json
import os
from pathlib import Path
from typing import Any

# the user's own settings would send the curves elsewhere or into another run
_TRACKER_PREFIXES = ("WANDB_", "MLFLOW_", "ACCELERATE_", "OTEL_", "DATABRICKS_")

# W&B would record this machine, which need not be the one that trained
_WANDB_PRIVACY = {
    "console": "off",
    "disable_git": True,
    "save_code": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


def export(file: Path) -> None:
    """Export the runs listed in *file*.

    The file holds ``to`` (tensorboard, mlflow or wandb), ``into`` (an empty folder), ``project``
    (a safe name) and ``runs`` (``analysis.training_curves.TrainingCurve``).
    """
    request = json.loads(file.read_text())
    _set_offline_environment(Path(request["into"]), file.parent)
    from accelerate import PartialState

    # the trackers ask it if this is the main process
    PartialState(cpu=True)
    for run in request["runs"]:
        tracker = _tracker(request, run)
        tracker.start()
        tracker.store_init_configuration(run["config"])
        for point in run["points"]:
            tracker.log(point["values"], step=point["step"], **_time_option(request["to"], point["time"]))
        tracker.finish()


def _set_offline_environment(into: Path, scratch: Path) -> None:
    """Set the variables that the libraries read when they are imported."""
    for name in list(os.environ):
        if name.startswith(_TRACKER_PREFIXES):
            del os.environ[name]
    os.environ |= {
        "DO_NOT_TRACK": "true",
        "HF_HUB_OFFLINE": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_TRACKING_URI": into.as_uri(),
        # acknowledges that the file store gets no new features
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "GIT_PYTHON_REFRESH": "quiet",
        "WANDB_MODE": "offline",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true",
        **{f"WANDB_{kind}_DIR": str(scratch) for kind in ("CACHE", "CONFIG", "DATA", "ARTIFACT")},
    }


def _tracker(request: dict[str, Any], run: dict[str, Any]) -> Any:
    from accelerate.tracking import MLflowTracker, TensorBoardTracker, WandBTracker

    if request["to"] == "tensorboard":
        # TensorBoard names a run after its folder
        return TensorBoardTracker(run["folder"], logging_dir=request["into"])
    if request["to"] == "mlflow":
        tags = {"distbench.kind": run["kind"], "distbench.case": run["group"]}
        return MLflowTracker(request["project"], run_name=run["name"], tags=tags)
    return WandBTracker(
        request["project"],
        name=run["name"],
        group=run["group"],
        job_type=run["kind"],
        dir=request["into"],
        mode="offline",
        settings=_WANDB_PRIVACY,
    )


def _time_option(to: str, time: float | None) -> dict[str, float | int]:
    """Argument that sets the time of a step; W&B always uses the time of the call."""
    if time is None or to == "wandb":
        return {}
    return {"walltime": time} if to == "tensorboard" else {"timestamp": int(time * 1000)}
