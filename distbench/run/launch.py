"""Launch requests of trials, the same for a real run and a dry run."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from distbench.core import registry
from distbench.core.case import Case, Limits
from distbench.core.errors import InfrastructureError
from distbench.core.job import job_kind
from distbench.ipc.trial_files import TrialFile
from distbench.launchers.base import HERE, Entry, Launch, Launcher, LaunchError, Place
from distbench.plan import PlannedTrial
from distbench.plan.environments import place_of
from distbench.plan.time_limits import limits_of
from distbench.record.run_folder import RUN_FILE, Run, resume_command
from distbench.run.control import StopRequest
from distbench.strategies.base import Strategy
from distbench.suite import Suite
from distbench.system.machine import cache_folder
from distbench.workloads.base import Workload


def launch_for(
    folder: Path, suite: Suite, task: PlannedTrial, place: Place = HERE, stop: StopRequest | None = None
) -> Launch:
    """Launch request of *task* in the run of *folder*, given up on *stop*."""
    case, job = task.case, task.job
    launcher: Launcher = registry.make("launchers", suite.launcher)
    strategy: Strategy = registry.make("strategies", case.strategy)
    processes = strategy.processes(case.world_size)
    file = Run(folder).trial_folder(case, task.round, job.kind) / "trial.json"
    shape = one_process("rank", file, folder, suite, case, place, stop)
    return replace(
        shape,
        processes=processes,
        nodes=launcher.nodes(processes, case.device),
        leftovers=strategy.leftovers,
        reads=[weights_file(folder, case), *(folder / "scratch" / name for name in [task.reads] if name)],
        leaves=[folder / "scratch" / name for name in [task.leaves] if name],
        is_sampled=job_kind(job.kind).with_metrics,
        reads_of_others=job_kind(job.kind).reads_of_others,
        start_s=limits_of(suite.limits, task, suite.measure).start,
    )


def one_process(
    entry: Entry,
    file: Path,
    folder: Path,
    suite: Suite,
    case: Case,
    place: Place = HERE,
    stop: StopRequest | None = None,
) -> Launch:
    """Launch request of one process that does *entry* with *file* for *case*, given up on *stop*.

    It has what every launch of the case has, be it a preparation or a trial.
    """
    launcher: Launcher = registry.make("launchers", suite.launcher)
    strategy: Strategy = registry.make("strategies", case.strategy)
    workload: Workload = registry.make("workloads", case.workload)
    return Launch(
        entry=entry,
        file=file,
        processes=1,
        device=case.device,
        environment={**launcher.environment(), **environment_of(strategy, case)},
        imports=("distbench.worker.warm", *_compiler(case), *strategy.imports(case), *workload.imports),
        place=place_of(suite, case, place),
        root=folder,
        start_s=suite.limits.start or Limits().start,
        given_up=lambda: stop is not None and stop.asked,
    )


def _compiler(case: Case) -> tuple[str, ...]:
    return () if case.compile == "none" else ("torch._inductor.compile_fx",)


def missing_nodes(error: LaunchError, folder: Path | None) -> InfrastructureError:
    """The end of the run in *folder*, which has no nodes because of *error*."""
    told = str(error).strip()
    if folder is None or not (folder / RUN_FILE).is_file():
        return InfrastructureError(told)
    # on a line of its own: what was told may end with a log
    return InfrastructureError(
        f"{told}\nWhat is stored is intact. When the nodes are there, resume with: {resume_command(folder)}"
    )


def environment_of(strategy: Strategy, case: Case) -> dict[str, str]:
    """Variables that the ranks of *case* need before their first import."""
    return {
        # OpenMP and MKL read it once, on import
        "OMP_NUM_THREADS": str(case.threads),
        # lets torch count GPUs without initialising CUDA, which would break forking
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        **(_inductor() if case.compile != "none" else {}),
        **strategy.environment(case),
    }


def _inductor() -> dict[str, str]:
    """Variables of torch.compile's backend: what it makes is kept, and made by the ranks themselves."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(cache_folder() / "inductor"),
        # its own pool of processes would outlive ranks that are killed
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }


def trial_file(run_id: str, folder: Path, suite: Suite, task: PlannedTrial) -> TrialFile:
    """Instructions for the ranks of *task*."""
    case = task.case
    return TrialFile(
        run_id=run_id,
        case=case,
        measure=suite.measure,
        limits=limits_of(suite.limits, task, suite.measure),
        metrics=list(suite.metrics),
        weights=str(weights_file(folder, case)),
        job=task.job,
        leaves=_scratch(folder, task.leaves),
        reads=_scratch(folder, task.reads),
    )


def _scratch(folder: Path, name: str) -> str:
    return str(folder / "scratch" / name) if name else ""


def weights_file(folder: Path, case: Case) -> Path:
    """File of the initial weights of *case*: one for each model, seed, rounding and way of making them."""
    named, seed, through = case.workload, case.seed, case.precision.compute
    decides = [named.name, named.options, seed, through, case.initial_weights]
    key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:12]
    return folder / "scratch" / f"weights-{key}.safetensors"
