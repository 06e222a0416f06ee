"""The job ``checkpoint``: saves a training, and goes on from what was saved as if nothing had been.

Each continuation starts in a fresh engine from the initial weights, so that whatever a load leaves out
shows. What is kept of it is held against the training that went on without a break.
"""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from distbench import registry
from distbench.strategies.base import Engine, Setting, Strategy
from distbench.trial import CHECKPOINT, TrialFile
from distbench.worker import checks, full_state
from distbench.worker.check import mean_over_ranks, refuse_dropout
from distbench.worker.checks import Refused
from distbench.worker.feed import Feed
from distbench.worker.measure import first_not_finite
from distbench.worker.phases import Phases
from distbench.worker.sketch import describe

Load = Callable[[Engine], None]


@dataclass
class Kept:
    """What this rank leaves."""

    curve: list[dict[str, Any]] = field(default_factory=list)
    tensors: list[dict[str, Any]] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)
    """A row for each continuation: whose state it goes on from, why there is none, and why the optimizer
    state that was loaded can't be seen."""
    samples: dict[str, list[float]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    effective: dict[str, Any] = field(default_factory=dict)


def run(trial: TrialFile, setting: Setting, phases: Phases) -> dict[str, Any]:
    """Return what this rank delivers; all but rank 0 deliver no rows.

    Raises:
        Refused: the model draws random numbers, or the state to go on from is not there.
        Mismatch: the engine is not the one that was asked for.
        OSError: a checkpoint could not be written.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    refuse_dropout(setting)
    job = _Checkpoints(trial, setting, phases)
    if trial.job.options["role"] == "case":
        job.own()
    job.exchanged()
    kept = job.kept
    tables = {
        "checkpoint_curve": kept.curve,
        "checkpoint_tensors": kept.tensors,
        "checkpoint_parts": kept.parts,
    }
    return {
        "samples": kept.samples,
        "passes": {},
        "absent": kept.absent,
        "tables": tables if setting.rank == 0 else {},
        "warmup_losses": [],
        "not_finite": first_not_finite([row["loss"] for row in kept.curve]),
        "effective": kept.effective,
        "window": (0.0, 0.0),
    }


class _Checkpoints:
    def __init__(self, trial: TrialFile, setting: Setting, phases: Phases) -> None:
        self.kept = Kept()
        self._setting, self._phases, self._asked = setting, phases, trial.job.options
        self._leaves, self._reads = Path(trial.leaves), Path(trial.reads)
        self._shards = setting.weights.with_name(f"shards-{setting.case.id}")
        self._strategy: Strategy = registry.make("strategies", setting.case.strategy)
        self._feed = Feed(setting.case, setting.workload, setting.rank, setting.world_size, setting.device)
        self._places = 0

    def own(self) -> None:
        """Train, save in shards and as a whole, go on; then go on again from either."""
        case = self._setting.case
        no_shards, no_file = self._saved()
        self._again("sharded", self._load, case.name, case.id, no_shards)
        self._again("full", self._load_full, case.name, case.id, no_file)
        if self._setting.rank == 0:
            shutil.rmtree(self._shards, ignore_errors=True)

    def exchanged(self) -> None:
        """Go on from the whole state of another case, if there is one to go on from.

        Raises:
            Refused: it is not there, and nothing else was asked for.
        """
        if "source" not in self._asked:
            return
        source, source_id = self._asked["source"], self._asked["source_id"]
        lacking = "" if self._reads.is_file() else f"{source} left no full state"
        if lacking and self._asked["role"] == "back":
            raise Refused(lacking)
        self._again("exchanged", self._load_other, source, source_id, lacking)

    def _saved(self) -> tuple[str, str]:
        """Train, save, and go on; return why there are no shards, and why no whole state."""
        engine = self._build()
        self._train(engine, "before", 0, self._asked["steps_before"])
        lacking = _why_not(self._save, engine), _why_not(self._consolidate, engine)
        self._go_on(engine, "continued")
        self.kept.effective = engine.effective()
        engine.close()
        return lacking

    def _again(self, training: str, load: Load, source: str, source_id: str, lacking: str) -> None:
        """Go on in a fresh engine from what *load* takes over."""
        unseen = ""
        if not lacking:
            engine = self._build()
            lacking = _why_not(load, engine)
            if not lacking:
                unseen = self._go_on(engine, training)
            engine.close()
        if lacking:
            unknown = [name for name in _NUMBERS[training] if name not in self.kept.samples]
            self.kept.absent |= dict.fromkeys(unknown, lacking)
        row = {"training": training, "source": source, "source_id": source_id, "lacking": lacking}
        self.kept.parts.append({**row, "unseen": unseen})

    def _build(self) -> Engine:
        self._at("build")
        # the engine before this one ends here: a device may hold one only
        gc.collect()
        torch.manual_seed(self._setting.case.seed)
        engine = self._strategy.build(self._setting)
        checks.check_engine(self._strategy, engine, self._setting.case)
        return engine

    def _save(self, engine: Engine) -> None:
        if self._setting.rank == 0:
            self._shards.mkdir()
        with self._timed("save", "checkpoint_save_s"):
            engine.save(self._shards)
            dist.barrier()
            # DCP flushes what it writes and DeepSpeed doesn't: both are timed to the disk
            _flush(self._shards)
        self.kept.samples["checkpoint_bytes"] = [float(_size(self._shards))]

    def _load(self, engine: Engine) -> None:
        with self._timed("load", "checkpoint_load_s"):
            engine.load(self._shards)

    def _consolidate(self, engine: Engine) -> None:
        with self._timed("consolidate", "full_save_s"):
            state = engine.consolidate()
            if self._setting.rank == 0:
                full_state.write(state, self._leaves)
        self.kept.samples["full_bytes"] = [float(self._leaves.stat().st_size)]

    def _load_full(self, engine: Engine) -> None:
        with self._timed("load full", "full_load_s"):
            engine.load_full(full_state.read(self._leaves))

    def _load_other(self, engine: Engine) -> None:
        self._at("load full")
        engine.load_full(full_state.read(self._reads))

    def _go_on(self, engine: Engine, training: str) -> str:
        """Keep what there is, and train on; return why the optimizer state can't be seen, or nothing."""
        before = self._asked["steps_before"]
        self._keep(training, before - 1, "parameter", engine.full_state())
        unseen = _why_not(lambda engine: self._keep_moments(engine, training, before - 1), engine)
        self._train(engine, training, before, self._asked["steps_after"])
        return unseen

    def _train(self, engine: Engine, training: str, first: int, steps: int) -> None:
        for step in range(first, first + steps):
            self._at("check")
            losses = [engine.forward_backward(batch) for batch in self._feed.micro_batches(step)]
            loss = mean_over_ranks(float(torch.stack([loss.double() for loss in losses]).mean()))
            norm = engine.grad_norm()
            self.kept.curve.append({"training": training, "step": step, "loss": loss, "grad_norm": norm})
            engine.step()
            if training != "before":
                self._keep(training, step, "parameter", engine.full_state())

    def _keep_moments(self, engine: Engine, training: str, step: int) -> None:
        self._at("consolidate")
        by_moment: dict[str, dict[str, torch.Tensor]] = {}
        for name, moments in engine.consolidate().optimizer.items():
            for moment, tensor in moments.items():
                by_moment.setdefault(moment, {})[name] = tensor
        for moment, tensors in by_moment.items():
            self._keep(training, step, moment, tensors)

    def _keep(self, training: str, step: int, of: str, tensors: dict[str, torch.Tensor]) -> None:
        """Keep fingerprints of tensors as they are after *step*."""
        if self._setting.rank == 0:
            place = {"training": training, "step": step, "of": of}
            self.kept.tensors += [
                {**place, "tensor": name, **describe(name, tensor)} for name, tensor in tensors.items()
            ]

    @contextmanager
    def _timed(self, phase: str, column: str) -> Iterator[None]:
        """Time the body from a barrier to a barrier."""
        self._at(phase)
        dist.barrier()
        began = time.perf_counter()
        yield
        dist.barrier()
        self.kept.samples[column] = [time.perf_counter() - began]

    def _at(self, phase: str) -> None:
        self._phases.current = phase
        self._places += 1
        self._phases.progress.at(CHECKPOINT, self._places)


_NUMBERS = {
    "sharded": ("checkpoint_save_s", "checkpoint_load_s", "checkpoint_bytes"),
    "full": ("full_save_s", "full_load_s", "full_bytes"),
    "exchanged": (),
}
"""Continuation -> the numbers that are not known without it."""


def _why_not(action: Load, engine: Engine) -> str:
    """Do *action* with *engine*; return why the engine can't, or nothing."""
    try:
        action(engine)
    except NotImplementedError as error:
        return str(error) or type(error).__name__
    return ""


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in _files(folder))


def _flush(folder: Path) -> None:
    for file in _files(folder):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
