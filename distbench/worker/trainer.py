"""Train a case step by step, with hooks for jobs that inspect it.

A job passes a ``StepHooks``, which is called at the points of a step where something can be observed. The
result of a rank is a ``RankResult``. The timed loop (``passes.py``) is separate: nothing is observed there.
"""

import gc
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from distbench.core import registry
from distbench.engines.base import engine_of
from distbench.strategies.base import Batch, RankContext, Strategy
from distbench.strategies.engine import Engine
from distbench.worker import checks
from distbench.worker.batches import MicroBatchReader
from distbench.worker.document_isolation import check_documents
from distbench.worker.dropout import seed_draws
from distbench.worker.sketch import NamedTensors, hash_tensors, sketch_tensors
from distbench.worker.spans import SpanDispatcher

Rows = list[dict[str, Any]]


@dataclass
class RankResult:
    """Result of a job on one rank."""

    samples: dict[str, list[Any]] = field(default_factory=dict)
    """Column -> one number per step, or a list of one."""
    passes: dict[str, str] = field(default_factory=dict)
    """Column -> the pass that its samples come from."""
    absent: dict[str, str] = field(default_factory=dict)
    """Column -> reason why there is no number."""
    tables: dict[str, Rows] = field(default_factory=dict)
    warmup_losses: list[float] = field(default_factory=list)
    not_finite: dict[str, Any] | None = None
    """First number of the training that was not finite: ``step``, ``value``, and more if known."""
    effective: dict[str, Any] = field(default_factory=dict)
    """Effective settings of the live engine."""
    window: tuple[float, float] = (0.0, 0.0)
    """``clock.now()`` at both ends of the timed steps."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Environment entries of this job, added to those of every rank."""


@dataclass(frozen=True)
class TrainingStep:
    """One step of a training, after its backward pass."""

    number: int
    batches: list[Batch]
    losses: list[float]
    """Loss of each rank; all have equal shares of the global batch."""

    @property
    def loss(self) -> float:
        """Mean loss over the global batch."""
        return math.fsum(self.losses) / len(self.losses)


class StepHooks:
    """Hooks between the parts of a training step, called on every rank; by default they do nothing."""

    def before_step(self, number: int) -> None:
        """Called before the data of the step are read."""

    def needs_gradients(self, number: int) -> bool:
        """True if ``before_update`` will request the gradients of that step."""
        return False

    def after_micro_batch(self, engine: Engine) -> None:
        """Called after the backward pass of each micro-batch."""

    def before_update(self, step: TrainingStep, engine: Engine) -> bool:
        """Called before the update; False ends the training there."""
        return True

    def after_update(self, step: TrainingStep, engine: Engine, seconds: float) -> None:
        """Called after the update; *seconds* is the training time so far, without that of hooks."""


class Trainer:
    """Trainer of one case on one rank, with its own engine."""

    def __init__(
        self, context: RankContext, reader: MicroBatchReader | None = None, *, seed: int | None = None
    ) -> None:
        """Build the engine, and check that it is the requested one.

        Args:
            reader: Data of the rank; None: that of the case.
            seed: Seed of the model's own random numbers; None: that of the case.

        Raises:
            Mismatch: the engine is not the requested one.
        """
        # free the previous engine: a device may only have room for one, without cached blocks of another
        gc.collect()
        if context.device.type == "cuda":
            torch.cuda.empty_cache()
        case = context.case
        torch.manual_seed(case.seed if seed is None else seed)
        strategy: Strategy = registry.create_plugin("strategies", case.strategy)
        self.engine = engine_of(case).build(strategy, context)
        SpanDispatcher.install(self.engine)
        checks.check_engine(strategy, self.engine, case)
        check_documents(self.engine, context)
        seed_draws(context, case.seed if seed is None else seed)
        self._reader = reader or MicroBatchReader(context)
        self._is_cuda = context.device.type == "cuda"
        self._seconds = 0.0

    def train(self, steps: Iterable[int], hooks: StepHooks) -> None:
        """Run the steps *steps*; the first step of a training is 0."""
        for number in steps:
            hooks.before_step(number)
            self.engine.retain_gradients = hooks.needs_gradients(number)
            step = self._forward_backward(number, hooks)
            if not hooks.before_update(step, self.engine):
                return
            began = time.perf_counter()
            self.engine.step()
            if self._is_cuda:
                torch.cuda.synchronize()
            self._seconds += time.perf_counter() - began
            hooks.after_update(step, self.engine, self._seconds)

    def _forward_backward(self, number: int, hooks: StepHooks) -> TrainingStep:
        began = time.perf_counter()
        batches = self._reader.micro_batches(number)
        parts = []
        for batch in batches:
            parts.append(self.engine.forward_backward(batch).double())
            hooks.after_micro_batch(self.engine)
        # converting it waits for the device
        loss = float(torch.stack(parts).mean())
        self._seconds += time.perf_counter() - began
        losses = [0.0] * dist.get_world_size()
        dist.all_gather_object(losses, loss)
        return TrainingStep(number, batches, losses)


class TrainingRecorder(StepHooks):
    """Recorder of the curves of trainings, and of fingerprints of their tensors."""

    def __init__(self, rank: int) -> None:
        self.training = ""
        """Name of the current training."""
        self.curve: Rows = []
        self.tensors: Rows = []
        """Fingerprints on rank 0; the other ranks keep none."""
        self.result = RankResult()
        self._is_rank_0 = rank == 0

    def needs_gradients(self, number: int) -> bool:
        """True: the gradient norm of every step is recorded."""
        return True

    def before_update(self, step: TrainingStep, engine: Engine) -> bool:
        """Record the loss and the gradient norm of *step*."""
        row = {"step": step.number, "loss": step.loss, "grad_norm": engine.grad_norm()}
        self.curve.append({"training": self.training, **row})
        return True

    def record_tensors(
        self,
        step: int,
        quantity: str,
        tensors: NamedTensors,
        *,
        on_all_ranks: bool = False,
        chunks_of: Callable[[str, torch.Tensor], Iterable[torch.Tensor]] | None = None,
    ) -> dict[str, str]:
        """Record fingerprints of *tensors* after *step* on rank 0; *chunks_of* as in ``sketch_tensors``.

        Return digests by name; on the other ranks none, unless *on_all_ranks*. All ranks iterate over the
        tensors, as gathering one is a collective call.
        """
        if not self._is_rank_0:
            return hash_tensors(tensors) if on_all_ranks else consume(tensors)
        sketches = sketch_tensors(tensors, chunks_of)
        place = {"training": self.training, "step": step, "of": quantity}
        self.tensors += [{**place, "tensor": name, **row} for name, row in sketches.items()]
        return {name: row["digest"] for name, row in sketches.items()}

    def build_result(self, kind: str, **more: Rows) -> RankResult:
        """Result of a *kind* of job: its tables, on rank 0 only, and the first loss that was not finite."""
        if self._is_rank_0:
            tables = {"curve": self.curve, "tensors": self.tensors, **more}
            self.result.tables = {f"{kind}_{name}": rows for name, rows in tables.items()}
        if broken := next((row for row in self.curve if not math.isfinite(row["loss"])), None):
            what = f"loss of the training {broken['training']!r}"
            self.result.not_finite = {"step": broken["step"], "value": str(broken["loss"]), "what": what}
        return self.result


def consume(tensors: NamedTensors) -> dict[str, str]:
    """Iterate over *tensors* without keeping any."""
    for _ in tensors:
        pass
    return {}


def differing_ranks(digests: dict[str, str]) -> Iterator[tuple[int, list[str]]]:
    """Yield ranks whose *digests* differ from those of rank 0, with the names. A collective call.

    A rank without its own replica has no digests, and so none that differ. There are thousands for a large
    model, so ranks first compare one digest of them all.
    """
    joined = "".join(f"{name}={digest}\n" for name, digest in sorted(digests.items()))
    of_all = [""] * dist.get_world_size()
    dist.all_gather_object(of_all, joined and hashlib.sha256(joined.encode()).hexdigest())
    if all(each in ("", of_all[0]) for each in of_all):
        return
    of_ranks: list[dict[str, str]] = [{}] * dist.get_world_size()
    dist.all_gather_object(of_ranks, digests)
    for rank, own in enumerate(of_ranks):
        if names := [name for name, digest in own.items() if digest != of_ranks[0].get(name)]:
            yield rank, names


def first_non_finite(losses: Iterable[tuple[int, float]]) -> dict[str, Any] | None:
    """First step and loss that is not finite; None if all are finite."""
    for step, loss in losses:
        if not math.isfinite(loss):
            return {"step": step, "value": str(loss)}
    return None
