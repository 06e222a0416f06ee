"""The job ``checkpoint``: saves a training and resumes it from what was saved.

Each continuation starts in a new engine from the initial weights, so that whatever a load leaves out shows.
Its fingerprints are compared with those of the training that never stopped.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from distbench.ipc.trial_files import NO_DROPOUT, Phases, TrialFile
from distbench.jobs.checkpoint import DIRECTLY, WHOLE, CheckpointOptions
from distbench.strategies.base import Refused, Setting
from distbench.strategies.engine import Engine, FullState
from distbench.system.files import whole
from distbench.worker import checks
from distbench.worker.dropout import without_dropout
from distbench.worker.feed import Feed
from distbench.worker.trainer import Delivery, Kept, Rows, Step, Trainer
from distbench.workloads import weights

Load = Callable[[Engine], None]


def run(trial: TrialFile, setting: Setting, phases: Phases) -> Delivery:
    """Result of this rank; only rank 0 has rows.

    Raises:
        Refused: the model draws random numbers, or the state to resume from is missing.
        Mismatch: the engine is not the requested one.
        OSError: a checkpoint could not be written.
    """
    # the states of generators are in no checkpoint that another strategy resumes from
    setting, dropped = without_dropout(setting)
    options = trial.job.options_as(CheckpointOptions)
    job = _Checkpoints(trial, setting, phases)
    if options.role == "case":
        job.own()
    if options.source:
        job.exchanged()
    job.end()
    delivery = job.delivered("checkpoint", parts=job.parts)
    delivery.facts |= {NO_DROPOUT: dropped} if dropped else {}
    return delivery


class _Checkpoints(Kept):
    def __init__(self, trial: TrialFile, setting: Setting, phases: Phases) -> None:
        super().__init__(setting.rank)
        self._setting, self._phases = setting, phases
        self._options = trial.job.options_as(CheckpointOptions)
        self._leaves, self._reads = Path(trial.leaves), Path(trial.reads)
        self._shards = self._shards_of(setting.case.id)
        self._feed = Feed(setting)
        self._places = 0
        self._began = 0.0
        """When the current phase began."""
        self.parts: Rows = []
        """A row for each continuation: whose state it resumes from, why it can't, and why the optimizer
        state that it loaded can't be inspected."""

    def own(self) -> None:
        """Train, save the sharded and the full state, continue; then resume from each of the two."""
        case, is_kept = self._setting.case, False
        try:
            no_shards, no_file = self._save_both()
            self._resume("sharded", self._load, case.name, case.id, no_shards)
            self._resume("full", self._load_full, case.name, case.id, no_file)
            is_kept = self._options.directly and not no_shards
        finally:
            # of a disk that they have filled, too
            if self._setting.rank == 0 and not is_kept:
                shutil.rmtree(self._shards, ignore_errors=True)

    def exchanged(self) -> None:
        """Resume from the shards of another case where they can be loaded, otherwise from its full state.

        Raises:
            Refused: it has left neither, and the trial does nothing else.
        """
        source, source_id = self._options.source, self._options.source_id
        # they end with the run, and are not copied where nodes share no files
        shards = self._shards_of(source_id)
        if self._options.directly and shards.is_dir():
            self._resume("exchanged", partial(self._load_shards, shards), source, source_id, "", DIRECTLY)
            return
        lacking = "" if self._reads.is_file() else f"{source} left no full state"
        if lacking and self._options.role == "back":
            raise Refused(lacking)
        self._resume("exchanged", self._load_other, source, source_id, lacking, WHOLE)

    def _save_both(self) -> tuple[str, str]:
        """Train, save, and continue; return why there is no sharded, and why no full state."""
        trainer = self._build()
        engine = trainer.engine
        self.training = "before"
        trainer.train(range(self._options.steps_before), self)
        if self._setting.case.precision.is_scaled_dynamically:
            lacking = _UNSCALED, _UNSCALED
        else:
            lacking = _why_not(self._save, engine), _why_not(self._consolidate, engine)
        self._continue(trainer, "continued")
        self.delivery.effective = checks.settings_of(engine)
        engine.close()
        return lacking

    def _resume(
        self, training: str, load: Load, source: str, source_id: str, lacking: str, way: str = ""
    ) -> None:
        """Resume in a new engine from what *load* restores, unless something is *lacking*."""
        unseen = ""
        if not lacking:
            trainer = self._build()
            lacking = _why_not(load, trainer.engine)
            if not lacking:
                unseen = self._continue(trainer, training)
            trainer.engine.close()
        if lacking:
            unknown = [name for name in _NUMBERS[training] if name not in self.delivery.samples]
            self.delivery.absent |= dict.fromkeys(unknown, lacking)
        row = {"training": training, "source": source, "source_id": source_id, "way": way}
        self.parts.append({**row, "lacking": lacking, "unseen": unseen})

    def _build(self) -> Trainer:
        self._at("build")
        return Trainer(self._setting, self._feed)

    def _save(self, engine: Engine) -> None:
        if self._setting.rank == 0:
            # those of a trial that was ended from outside are another training's
            shutil.rmtree(self._shards, ignore_errors=True)
            self._shards.mkdir()
        with self._timed("save", "checkpoint_save_s"):
            engine.save(self._shards)
            dist.barrier()
            files = [file for file in self._shards.rglob("*") if file.is_file()]
            # DCP flushes what it writes and DeepSpeed doesn't; both are timed until it is on disk
            for file in files:
                with file.open("rb") as stream:
                    os.fsync(stream.fileno())
        size = sum(file.stat().st_size for file in files)
        self.delivery.samples["checkpoint_bytes"] = [float(size)]

    def _load(self, engine: Engine) -> None:
        with self._timed("load", "checkpoint_load_s"):
            engine.load(self._shards)

    def _consolidate(self, engine: Engine) -> None:
        with self._timed("consolidate", "full_save_s"):
            state = engine.consolidate()
            if self._setting.rank == 0:
                _write(state, self._leaves)
        self.delivery.samples["full_bytes"] = [float(self._leaves.stat().st_size)]

    def _load_full(self, engine: Engine) -> None:
        with self._timed("load full", "full_load_s"):
            engine.load_full(_read(self._leaves))

    def _load_shards(self, folder: Path, engine: Engine) -> None:
        self._at("load")
        engine.load(folder)

    def _shards_of(self, case_id: str) -> Path:
        return self._setting.weights.with_name(f"shards-{case_id}")

    def _load_other(self, engine: Engine) -> None:
        self._at("load full")
        engine.load_full(_read(self._reads))

    def _continue(self, trainer: Trainer, training: str) -> str:
        """Keep the state and continue; return why the optimizer state can't be inspected, or nothing."""
        self.training = training
        before = self._options.steps_before
        self.keep(before - 1, "parameter", trainer.engine.full_parameters())
        unseen = _why_not(self._keep_moments, trainer.engine)
        trainer.train(range(before, before + self._options.steps_after), self)
        return unseen

    def begins(self, number: int) -> None:
        self._at("check")

    def updated(self, step: Step, engine: Engine, seconds: float) -> None:
        if self.training != "before":
            self.keep(step.number, "parameter", engine.full_parameters())

    def _keep_moments(self, engine: Engine) -> None:
        self._at("consolidate")
        for name, moments in engine.consolidate().optimizer.items():
            for moment, tensor in moments.items():
                self.keep(self._options.steps_before - 1, moment, [(name, tensor)])

    @contextmanager
    def _timed(self, phase: str, column: str) -> Iterator[None]:
        """Time the body from one barrier to another."""
        self._at(phase)
        dist.barrier()
        began = time.perf_counter()
        yield
        dist.barrier()
        self.delivery.samples[column] = [time.perf_counter() - began]

    def end(self) -> None:
        """The last phase is over."""
        self._at("check")

    def _at(self, phase: str) -> None:
        now = time.perf_counter()
        if self._places:
            self._phases.add(self._phases.current, now - self._began)
        self._phases.current, self._began = phase, now
        self._places += 1
        self._phases.progress.at("checkpoint", self._places)


_NUMBERS = {
    "sharded": ("checkpoint_save_s", "checkpoint_load_s", "checkpoint_bytes"),
    "full": ("full_save_s", "full_load_s", "full_bytes"),
    "exchanged": (),
}
"""Continuation -> the numbers that are unknown without it."""


_UNSCALED = "checkpoints do not have the state of a dynamic loss scale"


def _why_not(action: Load, engine: Engine) -> str:
    """Call *action* with *engine*; return why the engine can't do it, or nothing."""
    try:
        action(engine)
    except NotImplementedError as error:
        return str(error) or type(error).__name__
    return ""


_UPDATES = "updates"
"""Key of the number of updates in the file, among those of tensors, which have a kind before a slash."""


def _write(state: FullState, file: Path) -> None:
    """Write *state* as safetensors, which hold tensors and no code; *file* is whole or absent."""
    named = {f"parameters/{name}": tensor for name, tensor in state.parameters.items()}
    named |= {f"buffers/{name}": tensor for name, tensor in state.buffers.items()}
    if state.updates:
        named[_UPDATES] = torch.tensor(state.updates)
    for name, moments in state.optimizer.items():
        named |= {f"optimizer/{moment}/{name}": tensor for moment, tensor in moments.items()}
    with whole(file) as aside:
        save_file(weights.apart(named), aside)


def _read(file: Path) -> FullState:
    """State that ``_write`` wrote."""
    tensors = weights.read(file)
    state = FullState(updates=int(tensors.pop(_UPDATES, 0)))
    for key, tensor in tensors.items():
        kind, _, name = key.partition("/")
        if kind == "optimizer":
            moment, _, name = name.partition("/")
            state.optimizer.setdefault(name, {})[moment] = tensor
        else:
            (state.parameters if kind == "parameters" else state.buffers)[name] = tensor
    return state
