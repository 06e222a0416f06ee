"""What is launched for a trial: the same for a real run and for a dry one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from distbench import registry
from distbench.case import Case
from distbench.job import Job
from distbench.launchers.base import HERE, Launch, Place
from distbench.plan import Task
from distbench.spec import Suite
from distbench.store import Run
from distbench.strategies.base import Strategy
from distbench.trial import TrialFile
from distbench.workloads.base import Workload


def launch_for(folder: Path, task: Task, place: Place = HERE) -> Launch:
    """Return what is launched for *task* in the run of *folder*."""
    case = task.case
    strategy: Strategy = registry.make("strategies", case.strategy)
    workload: Workload = registry.make("workloads", case.workload)
    return Launch(
        entry="rank",
        file=Run(folder).trial_folder(case, task.round, task.job.kind) / "trial.json",
        processes=strategy.processes(case.world_size),
        environment=environment_of(strategy, case) | job_environment(task.job),
        imports=("distbench.worker.warm", *strategy.imports(case), *workload.imports),
        leftovers=strategy.leftovers,
        place=place,
    )


def environment_of(strategy: Strategy, case: Case) -> dict[str, str]:
    """Return the variables that the ranks of *case* need before their first import."""
    return {
        # before the import: OpenMP and MKL read it once
        "OMP_NUM_THREADS": str(case.threads),
        # lets torch count GPUs without touching CUDA, which would spoil the fork
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        **strategy.environment(case),
    }


def job_environment(job: Job) -> dict[str, str]:
    """Return the variables that ranks need for what they are launched for."""
    # without it cuBLAS has no deterministic mode (docs.nvidia.com/cuda/cublas, reproducibility)
    return {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if job.kind != "measure" else {}


def trial_file(run_id: str, folder: Path, suite: Suite, task: Task) -> TrialFile:
    """Return what the ranks of *task* are told."""
    case = task.case
    return TrialFile(
        run_id=run_id,
        case=case,
        measure=suite.measure,
        limits=suite.limits,
        metrics=list(suite.metrics),
        weights=str(weights_file(folder, case)),
        job=task.job,
        leaves=_scratch(folder, task.leaves),
        reads=_scratch(folder, task.reads),
    )


def _scratch(folder: Path, name: str) -> str:
    return str(folder / "scratch" / name) if name else ""


def weights_file(folder: Path, case: Case) -> Path:
    """Return the file of the initial weights of *case*: one for each model, seed and rounding."""
    decides = [case.workload.name, case.workload.options, case.seed, case.precision.compute]
    key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:12]
    return folder / "scratch" / f"weights-{key}.safetensors"
