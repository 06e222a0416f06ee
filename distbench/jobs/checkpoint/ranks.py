"""Save a training and resume it from its checkpoints, on one rank.

Each continuation starts in a new engine from the initial weights, so anything that a load omits shows.
Its fingerprints are compared with those of the uninterrupted training.
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

from distbench.ipc.trial_files import NO_DROPOUT_KEY, PhaseTimer, TrialInstructions
from distbench.jobs.checkpoint import FROM_FULL_STATE, FROM_SHARDS, CheckpointOptions
from distbench.strategies.base import RankContext, UnsupportedCase
from distbench.strategies.engine import Engine, TrainingState
from distbench.system.files import atomic_path
from distbench.worker import checks
from distbench.worker.batches import MicroBatchReader
from distbench.worker.dropout import without_dropout
from distbench.worker.trainer import RankResult, Rows, Trainer, TrainingRecorder, TrainingStep
from distbench.workloads import weights

LoadState = Callable[[Engine], None]


def run(trial: TrialInstructions, context: RankContext, phases: PhaseTimer) -> RankResult:
    """Return the result of this rank; only rank 0 has rows.

    Raises:
        UnsupportedCase: the model draws random numbers, or the state to resume from is missing.
        Mismatch: the engine is not the requested one.
        OSError: a checkpoint could not be written.
    """
    # no checkpoint that a different strategy resumes from has the states of random generators
    context, dropped = without_dropout(context)
    options = trial.job.options_as(CheckpointOptions)
    job = _CheckpointRecorder(trial, context, phases)
    if options.role == "case":
        job.run_own()
    if options.source:
        job.run_exchange()
    job.end()
    delivery = job.build_result("checkpoint", parts=job.continuation_rows)
    delivery.facts |= {NO_DROPOUT_KEY: dropped} if dropped else {}
    return delivery


class _CheckpointRecorder(TrainingRecorder):
    def __init__(self, trial: TrialInstructions, context: RankContext, phases: PhaseTimer) -> None:
        super().__init__(context.rank)
        self._context, self._phases = context, phases
        self._options = trial.job.options_as(CheckpointOptions)
        self._output_file, self._input_file = Path(trial.output_file), Path(trial.input_file)
        self._shards = self._shards_of(context.case.id)
        self._feed = MicroBatchReader(context)
        self._phase_count = 0
        self._began = 0.0
        """Start time of the current phase."""
        self.continuation_rows: Rows = []
        """Row per continuation: the case whose state it resumes from, why it can't, and why the optimizer
        state that it loaded can't be inspected."""

    def run_own(self) -> None:
        """Train, save the sharded and the full state, continue; then resume from each of the two."""
        case, is_kept = self._context.case, False
        try:
            no_shards, no_file = self._train_and_save()
            self._resume("sharded", self._load, case.name, case.id, no_shards)
            self._resume("full", self._load_full, case.name, case.id, no_file)
            is_kept = self._options.directly and not no_shards
        finally:
            # also on a disk that the shards have filled
            if self._context.rank == 0 and not is_kept:
                shutil.rmtree(self._shards, ignore_errors=True)

    def run_exchange(self) -> None:
        """Resume from the shards of another case if they can be loaded, otherwise from its full state.

        Raises:
            UnsupportedCase: the other case left neither, and the trial does nothing else.
        """
        source, source_id = self._options.source, self._options.source_id
        # shards are deleted with the run, and are not copied if nodes share no files
        shards = self._shards_of(source_id)
        if self._options.directly and shards.is_dir():
            self._resume("exchanged", partial(self._load_shards, shards), source, source_id, "", FROM_SHARDS)
            return
        lacking = "" if self._input_file.is_file() else f"{source} stored no full state"
        if lacking and self._options.role == "back":
            raise UnsupportedCase(lacking)
        self._resume("exchanged", self._load_other, source, source_id, lacking, FROM_FULL_STATE)

    def _train_and_save(self) -> tuple[str, str]:
        """Train, save, and continue; return the reasons why there are no shards and no full state."""
        trainer = self._build()
        engine = trainer.engine
        self.training = "before"
        trainer.train(range(self._options.steps_before), self)
        if self._context.case.precision.is_scaled_dynamically:
            lacking = _NO_LOSS_SCALE, _NO_LOSS_SCALE
        else:
            lacking = _refusal(self._save, engine), _refusal(self._save_full, engine)
        self._continue(trainer, "continued")
        self.result.effective = checks.effective_settings(engine)
        engine.close()
        return lacking

    def _resume(
        self, training: str, load: LoadState, source: str, source_id: str, lacking: str, way: str = ""
    ) -> None:
        """Resume in a new engine from the state that *load* restores, unless it is *lacking* (a reason)."""
        unseen = ""
        if not lacking:
            trainer = self._build()
            lacking = _refusal(load, trainer.engine)
            if not lacking:
                unseen = self._continue(trainer, training)
            trainer.engine.close()
        if lacking:
            unknown = [name for name in _COLUMNS_OF[training] if name not in self.result.samples]
            self.result.absent |= dict.fromkeys(unknown, lacking)
        row = {"training": training, "source": source, "source_id": source_id, "way": way}
        self.continuation_rows.append({**row, "lacking": lacking, "unseen": unseen})

    def _build(self) -> Trainer:
        self._enter_phase("build")
        return Trainer(self._context, self._feed)

    def _save(self, engine: Engine) -> None:
        if self._context.rank == 0:
            # shards of a trial that was stopped from outside belong to a different training
            shutil.rmtree(self._shards, ignore_errors=True)
            self._shards.mkdir()
        with self._timed("save", "checkpoint_save_s"):
            engine.save_sharded(self._shards)
            dist.barrier()
            files = [file for file in self._shards.rglob("*") if file.is_file()]
            # DCP flushes what it writes and DeepSpeed doesn't; both are timed until the data is on disk
            for file in files:
                with file.open("rb") as stream:
                    os.fsync(stream.fileno())
        size = sum(file.stat().st_size for file in files)
        self.result.samples["checkpoint_bytes"] = [float(size)]

    def _load(self, engine: Engine) -> None:
        with self._timed("load", "checkpoint_load_s"):
            engine.load_sharded(self._shards)

    def _save_full(self, engine: Engine) -> None:
        with self._timed("consolidate", "full_save_s"):
            state = engine.gather_state()
            if self._context.rank == 0:
                _write_full_state(state, self._output_file)
        self.result.samples["full_bytes"] = [float(self._output_file.stat().st_size)]

    def _load_full(self, engine: Engine) -> None:
        with self._timed("load full", "full_load_s"):
            engine.scatter_state(_read_full_state(self._output_file))

    def _load_shards(self, folder: Path, engine: Engine) -> None:
        self._enter_phase("load")
        engine.load_sharded(folder)

    def _shards_of(self, case_id: str) -> Path:
        return self._context.weights_file.with_name(f"shards-{case_id}")

    def _load_other(self, engine: Engine) -> None:
        self._enter_phase("load full")
        engine.scatter_state(_read_full_state(self._input_file))

    def _continue(self, trainer: Trainer, training: str) -> str:
        """Record the state and continue; return why the optimizer state can't be inspected, or ""."""
        self.training = training
        before = self._options.steps_before
        self.record_tensors(before - 1, "parameter", trainer.engine.full_parameters())
        unseen = _refusal(self._record_optimizer_state, trainer.engine)
        trainer.train(range(before, before + self._options.steps_after), self)
        return unseen

    def before_step(self, number: int) -> None:
        self._enter_phase("check")

    def after_update(self, step: TrainingStep, engine: Engine, seconds: float) -> None:
        if self.training != "before":
            self.record_tensors(step.number, "parameter", engine.full_parameters())

    def _record_optimizer_state(self, engine: Engine) -> None:
        self._enter_phase("consolidate")
        for name, moments in engine.gather_state().optimizer.items():
            for moment, tensor in moments.items():
                self.record_tensors(self._options.steps_before - 1, moment, [(name, tensor)])

    @contextmanager
    def _timed(self, phase: str, column: str) -> Iterator[None]:
        """Time the body from one barrier to the next."""
        self._enter_phase(phase)
        dist.barrier()
        began = time.perf_counter()
        yield
        dist.barrier()
        self.result.samples[column] = [time.perf_counter() - began]

    def end(self) -> None:
        """End the last phase."""
        self._enter_phase("check")

    def _enter_phase(self, phase: str) -> None:
        now = time.perf_counter()
        if self._phase_count:
            self._phases.add(self._phases.current, now - self._began)
        self._phases.current, self._began = phase, now
        self._phase_count += 1
        self._phases.progress.report("checkpoint", self._phase_count)


_COLUMNS_OF = {
    "sharded": ("checkpoint_save_s", "checkpoint_load_s", "checkpoint_bytes"),
    "full": ("full_save_s", "full_load_s", "full_bytes"),
    "exchanged": (),
}
"""Continuation -> columns that are unknown without it."""


_NO_LOSS_SCALE = "checkpoints do not contain the state of a dynamic loss scale"


def _refusal(action: LoadState, engine: Engine) -> str:
    """Call *action* with *engine*; return why the engine can't do it, or ""."""
    try:
        action(engine)
    except NotImplementedError as error:
        return str(error) or type(error).__name__
    return ""


_UPDATES = "updates"
"""Key of the number of updates in the file; the keys of tensors have a kind before a slash."""


def _write_full_state(state: TrainingState, file: Path) -> None:
    """Write *state* as safetensors, which contain tensors and no code; *file* is complete or absent."""
    named = {f"parameters/{name}": tensor for name, tensor in state.parameters.items()}
    named |= {f"buffers/{name}": tensor for name, tensor in state.buffers.items()}
    if state.scheduled_updates:
        named[_UPDATES] = torch.tensor(state.scheduled_updates)
    for name, moments in state.optimizer.items():
        named |= {f"optimizer/{moment}/{name}": tensor for moment, tensor in moments.items()}
    with atomic_path(file) as aside:
        save_file(weights.unshared(named), aside)


def _read_full_state(file: Path) -> TrainingState:
    """Read a state that ``_write_full_state`` wrote."""
    tensors = weights.read_tensors(file)
    state = TrainingState(scheduled_updates=int(tensors.pop(_UPDATES, 0)))
    for key, tensor in tensors.items():
        kind, _, name = key.partition("/")
        if kind == "optimizer":
            moment, _, name = name.partition("/")
            state.optimizer.setdefault(name, {})[moment] = tensor
        else:
            (state.parameters if kind == "parameters" else state.buffers)[name] = tensor
    return state
