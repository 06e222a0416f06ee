"""Describe what to launch for a trial or a build, in real and dry runs alike."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from distbench.core import registry
from distbench.core.case import Case
from distbench.core.errors import InfrastructureError
from distbench.core.job import job_kind
from distbench.core.measurement import TimeLimits
from distbench.engines.base import engine_of
from distbench.ipc.launch_spec import CURRENT_PYTHON, LaunchSpec, PythonTarget, WorkerCommand
from distbench.ipc.trial_files import TrialInstructions
from distbench.launchers.base import Launcher, LaunchError
from distbench.plan import PlannedTrial
from distbench.plan.environments import launch_place
from distbench.record.run_folder import RUN_FILE, Run, resume_command
from distbench.strategies.base import Strategy
from distbench.suite import Suite
from distbench.system.cache import cache_folder
from distbench.workloads.base import Workload


def trial_launch(
    folder: Path,
    suite: Suite,
    task: PlannedTrial,
    limits: TimeLimits,
    target: PythonTarget = CURRENT_PYTHON,
) -> LaunchSpec:
    """Launch request of *task* in the run of *folder*, with the time *limits* of the trial."""
    case, job = task.case, task.job
    launcher: Launcher = registry.create_plugin("launchers", suite.launcher)
    strategy: Strategy = registry.create_plugin("strategies", case.strategy)
    processes = strategy.processes(case.world_size)
    file = Run(folder).trial_folder(case, task.round, job.kind) / "trial.json"
    shape = process_launch("rank", file, folder, suite, case, target)
    return replace(
        shape,
        processes=processes,
        nodes=launcher.node_count(processes, case.device),
        leftovers=tuple(strategy.leftovers),
        input_files=(
            weights_file(folder, case),
            *(folder / "scratch" / name for name in [task.input_file] if name),
        ),
        output_files=tuple(folder / "scratch" / name for name in [task.output_file] if name),
        is_sampled=job_kind(job.kind).uses_metrics,
        needs_shared_files=job_kind(job.kind).needs_shared_files,
        start_s=limits.start,
    )


def process_launch(
    command: WorkerCommand,
    instructions: Path,
    folder: Path,
    suite: Suite,
    case: Case,
    target: PythonTarget = CURRENT_PYTHON,
) -> LaunchSpec:
    """Launch request of one process that runs *command* with *instructions* for *case*.

    It has everything that each launch of the case has, be it a preparation or a trial.
    """
    launcher: Launcher = registry.create_plugin("launchers", suite.launcher)
    strategy: Strategy = registry.create_plugin("strategies", case.strategy)
    workload: Workload = registry.create_plugin("workloads", case.workload)
    return LaunchSpec(
        command=command,
        instructions=instructions,
        processes=1,
        device=case.device,
        environment={**launcher.environment(), **rank_environment(strategy, case)},
        imports=(
            "distbench.worker.preload",
            *_compiler_imports(case),
            *strategy.imports(case),
            *engine_of(case).imports,
            *workload.imports,
        ),
        target=launch_place(suite, case, target),
        run_folder=folder,
        start_s=suite.limits.start or TimeLimits().start,
    )


def _compiler_imports(case: Case) -> tuple[str, ...]:
    return () if case.compile == "none" else ("torch._inductor.compile_fx",)


def nodes_unavailable_error(error: LaunchError, folder: Path | None) -> InfrastructureError:
    """Error that ends the run in *folder*, whose nodes are not available because of *error*."""
    message = str(error).strip()
    if folder is None or not (folder / RUN_FILE).is_file():
        return InfrastructureError(message)
    # on a line of its own: the message may end with a log
    return InfrastructureError(
        f"{message}\nStored results are intact. When the nodes are available, resume with: "
        f"{resume_command(folder)}"
    )


def rank_environment(strategy: Strategy, case: Case) -> dict[str, str]:
    """Variables that the ranks of *case* need before their first import."""
    return {
        # OpenMP and MKL read it once, on import
        "OMP_NUM_THREADS": str(case.threads),
        # lets torch count GPUs without initialising CUDA, which would break forking
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        **(_inductor_environment() if case.compile != "none" else {}),
        **case.env,
        **strategy.environment(case),
    }


def _inductor_environment() -> dict[str, str]:
    """Variables of torch.compile's backend: keep its cache, and compile in the ranks themselves."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(cache_folder() / "inductor"),
        # its own process pool would outlive ranks that are killed
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }


def trial_instructions(
    run_id: str, folder: Path, suite: Suite, task: PlannedTrial, limits: TimeLimits
) -> TrialInstructions:
    """Instructions for the ranks of *task*."""
    case = task.case
    return TrialInstructions(
        run_id=run_id,
        case=case,
        measure=suite.measure,
        limits=limits,
        metrics=list(suite.metrics),
        weights=str(weights_file(folder, case)),
        job=task.job,
        output_file=_scratch_path(folder, task.output_file),
        input_file=_scratch_path(folder, task.input_file),
    )


def _scratch_path(folder: Path, name: str) -> str:
    return str(folder / "scratch" / name) if name else ""


def weights_file(folder: Path, case: Case) -> Path:
    """File of the initial weights of *case*: one per model, seed, rounding and construction method."""
    named, seed, through = case.workload, case.seed, case.precision.compute
    decides = [named.name, named.options, seed, through, case.initial_weights]
    key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:12]
    return folder / "scratch" / f"weights-{key}.safetensors"
