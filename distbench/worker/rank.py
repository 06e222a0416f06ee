"""One rank of one trial: joins the others, does its job with them, leaves one file."""

from __future__ import annotations

import datetime
import faulthandler
import json
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from distbench import registry
from distbench.case import Case
from distbench.files import write_whole
from distbench.strategies.base import Setting
from distbench.trial import Progress, TrialFile, error_file, progress_file, result_file
from distbench.worker import check, checkpoint, converge, facts, measure
from distbench.worker.phases import Phases
from distbench.workloads.base import Workload

# kind of job -> what does it: trial, setting and phases in, what this rank delivers out
_JOBS: dict[str, Callable[[TrialFile, Setting, Phases], dict[str, Any]]] = {
    "measure": measure.run,
    "check": check.run,
    "checkpoint": checkpoint.run,
    "converge": converge.run,
}

# in a rank forked from a warm parent this module was imported by that parent
_IMPORTED_BY = os.getpid()


def run_rank(file: Path, listener: int | None = None) -> NoReturn:
    """Run the rank that ``RANK`` names of the trial in *file*, and end the process.

    *listener* is the listening socket of the rendezvous, if the launcher has bound one already.
    """
    began, rank = time.time(), int(os.environ["RANK"])
    folder = file.parent
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    progress = Progress(progress_file(folder, rank))
    progress.at("start")
    phases = Phases(progress)
    try:
        trial = TrialFile.read(file)
        result = Rank(trial, folder, rank, phases, listener).run()
        _deliver(result_file(folder, rank), {**result, "began": began})
        progress.at("done")
    except BaseException as error:
        # the edge of the process: whatever a framework or a user's model raises is told in a file
        _deliver(error_file(folder, rank), _describe(error, phases.current))
        traceback.print_exc()
        _end(1)
    _end(0)


def _end(code: int) -> NoReturn:
    """End hard: interpreters that end normally after gloo's teardown abort now and then."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _deliver(file: Path, data: dict[str, Any]) -> None:
    write_whole(file, json.dumps(_finite(data), allow_nan=False))


def _finite(data: Any) -> Any:
    """Return *data* with null for every number that JSON can't say."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data


def _describe(error: BaseException, phase: str) -> dict[str, Any]:
    return {
        "at": time.time(),
        "phase": phase,
        "types": [cls.__name__ for cls in type(error).__mro__],
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


class Rank:
    """What every rank does, whatever its job."""

    def __init__(
        self, trial: TrialFile, folder: Path, rank: int, phases: Phases, listener: int | None
    ) -> None:
        self.trial = trial
        self.case: Case = trial.case
        self.folder = folder
        self.rank = rank
        self.processes = int(os.environ["WORLD_SIZE"])
        self.phases = phases
        self.listener = listener
        self.workload: Workload = registry.make("workloads", self.case.workload)

    def run(self) -> dict[str, Any]:
        """Return what this rank delivers.

        Raises:
            Mismatch: what runs is not what was asked for.
        """
        with self.phases.phase("start"):
            device = self._device()
            self._join(device)
        job = _JOBS[self.trial.job.kind]
        setting = self._setting(device)
        result = job(self.trial, setting, self.phases)
        result["environment"] = {**facts.describe(device), "warm": os.getpid() != _IMPORTED_BY}
        result["phases"] = self.phases.seconds
        # nobody may leave while another still talks to it
        dist.barrier()
        return result

    def _device(self) -> torch.device:
        torch.set_num_threads(self.case.threads)
        # what a model draws while it trains (dropout) must not depend on the process that it was forked from
        torch.manual_seed(self.case.seed)
        if self.case.device == "cpu":
            return torch.device("cpu")
        if torch.cuda._is_in_bad_fork():
            raise RuntimeError(
                "CUDA was touched before the ranks were forked; set launcher.local.warm: false"
            )
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        return device

    def _join(self, device: torch.device) -> None:
        """Join the process group of all ranks of the trial."""
        # later than the parent's own deadline, which knows who is behind and dumps the stacks
        timeout = datetime.timedelta(seconds=2 * self.trial.limits.step + 30)
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            self.processes,
            is_master=self.rank == 0,
            timeout=datetime.timedelta(seconds=self.trial.limits.start),
            master_listen_fd=self.listener,
        )
        # gloo beside NCCL: offloaded parameters are reduced and gathered on the CPU
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(
            backend, store=store, rank=self.rank, world_size=self.processes, timeout=timeout
        )
        dist.barrier()

    def _setting(self, device: torch.device) -> Setting:
        return Setting(
            case=self.case,
            workload=self.workload,
            weights=Path(self.trial.weights),
            device=device,
            rank=self.rank,
            world_size=self.processes,
            scratch=self.folder,
        )
