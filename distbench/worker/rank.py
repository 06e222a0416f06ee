"""One rank of one trial: joins the others, builds the engine, runs the passes, leaves one file."""

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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from distbench import registry
from distbench.case import Case
from distbench.files import write_whole
from distbench.metrics.base import Metric, Pass
from distbench.strategies.base import Setting, Strategy
from distbench.trial import Progress, TrialFile, error_file, progress_file, result_file
from distbench.worker import checks, facts
from distbench.worker.feed import Feed
from distbench.worker.passes import Loop, PassResult
from distbench.workloads.base import Workload

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


@dataclass
class Phases:
    """Where this rank is, and how long each phase took."""

    progress: Progress
    current: str = "start"
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the body as phase *name* and show it to the parent."""
        self.current = name
        self.progress.at(name)
        began = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - began


class Rank:
    """What one rank does, phase by phase."""

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
        self.strategy: Strategy = registry.make("strategies", self.case.strategy)
        self.workload: Workload = registry.make("workloads", self.case.workload)
        self.metrics: dict[str, Metric] = {
            choice.name: registry.make("metrics", choice) for choice in trial.metrics
        }

    def run(self) -> dict[str, Any]:
        """Return what this rank delivers.

        Raises:
            Mismatch: what runs is not what was asked for.
        """
        with self.phases.phase("start"):
            device = self._device()
            self._join(device)
        with self.phases.phase("build"):
            for metric in self.metrics.values():
                metric.install()
            setting = self._setting(device)
            engine = self.strategy.build(setting)
            feed = Feed(self.case, self.workload, self.rank, self.processes, device)
        loop = Loop(setting, self.strategy, engine, feed, keep_traces=self.trial.measure.keep_traces)
        checks.check_engine(self.strategy, engine, self.case)
        checks.check_distinct_data(feed, self.processes)
        warmup = self._pass(loop, "warmup", self.trial.measure.warmup)
        # the optimizer's state exists only now
        loop.effective = engine.effective()
        checks.check_effective(loop.effective, self.case, self.workload, self.strategy)
        timed = self._pass(loop, "time", self.trial.measure.steps)
        counted = self._pass(loop, "count", 1)
        profiled = self._pass(loop, "profile", self.trial.measure.profile_steps)
        checked = self._pass(loop, "check", self.trial.measure.check_steps)
        checks.check_same_norm(checked.norms, self.processes)
        unsynced = self._pass(loop, "unsynced", self.trial.measure.unsynced_steps)
        result = self._result(loop.effective, device, [warmup, timed, counted, profiled, checked, unsynced])
        result["window"] = timed.window
        # nobody may leave while another still talks to it
        dist.barrier()
        return result

    def _pass(self, loop: Loop, name: Pass, steps: int) -> PassResult:
        with self.phases.phase(name):
            return loop.run(name, steps, self.metrics, self.phases.progress)

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

    def _result(
        self,
        effective: dict[str, Any],
        device: torch.device,
        passes: list[PassResult],
    ) -> dict[str, Any]:
        losses = [loss for result in passes for loss in result.losses]
        return {
            "samples": _merge(result.samples for result in passes),
            "passes": {column: result.name for result in passes for column in result.samples},
            "absent": _merge(result.absent for result in passes),
            "tables": _joined(result.tables for result in passes),
            "warmup_losses": passes[0].losses,
            "not_finite": _first_not_finite(losses),
            "phases": self.phases.seconds,
            "effective": effective,
            "environment": {**facts.describe(device), "warm": os.getpid() != _IMPORTED_BY},
        }


def _merge(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {key: value for part in parts for key, value in part.items()}


def _joined(parts: Iterable[dict[str, list[dict[str, Any]]]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each table, pass after pass."""
    found: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        for name, rows in part.items():
            found.setdefault(name, []).extend(rows)
    return found


def _first_not_finite(losses: list[float]) -> dict[str, Any] | None:
    for step, loss in enumerate(losses):
        if not math.isfinite(loss):
            return {"step": step, "value": str(loss)}
    return None
