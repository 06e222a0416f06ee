"""The Trainer's own training loop, which runs from one micro-batch to the next when distbench calls it."""

from __future__ import annotations

import contextvars
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import torch
import transformers
from accelerate.utils.deepspeed import DeepSpeedSchedulerWrapper
from greenlet import GreenletExit, getcurrent, greenlet
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainingArguments

from distbench.engines._accelerate import add_scheduler
from distbench.strategies.base import Batch, RankContext, UnsupportedCase
from distbench.strategies.engine import SpanMarker
from distbench.strategies.torch_engine import optimizer


class TrainedEngine(Protocol):
    """Part of an engine that the Trainer calls when it takes the steps."""

    span: SpanMarker

    def losses(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean loss of *batch*, and the same with what the backward pass needs in it."""


class SteppedTrainer(Trainer):  # type: ignore[misc]
    """Trainer that returns to its caller when it needs data, and after each backward pass.

    It overrides what the documentation of Trainer names for a loop of one's own data, loss and optimizer.
    """

    def __init__(
        self,
        context: RankContext,
        module: nn.Module,
        made_optimizer: torch.optim.Optimizer,
        arguments: TrainingArguments,
    ) -> None:
        self._context, self.made_optimizer = context, made_optimizer
        super().__init__(model=module, args=arguments)
        # the loss of the case is a mean for each micro-batch, so that the Trainer has no labels to count
        self.model_accepts_loss_kwargs = False
        self.case_scheduler: LambdaLR | None = None
        """Scheduler of the case; None: its rate is constant."""
        self.engine: weakref.ref[TrainedEngine]
        """The engine whose steps these are, which the loop must not keep alive."""
        self.batch: Batch = {}
        """Micro-batch that the caller has passed."""
        self._span, self._loss = ExitStack(), torch.empty(0)
        self._returned = False

    def get_train_dataloader(self) -> Any:
        """Micro-batches of one step after another, each when distbench has announced it."""
        return _AnnouncedBatches(self._context)

    def create_optimizer(self, *_: Any) -> Any:
        """Optimizer of the case: with DeepSpeed, the Trainer forgets one that its constructor got."""
        if self.optimizer is None:
            self.optimizer: Any = self.made_optimizer
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Scheduler of the case, which the Trainer or DeepSpeed steps; a constant one if it has none."""
        self.lr_scheduler = self._make_scheduler()
        if self.lr_scheduler is None:
            super().create_scheduler(num_training_steps, optimizer)
            for group in self.optimizer.param_groups:
                # a trace of the constant schedule, which a checkpoint of other engines does not have
                del group["initial_lr"]
        return self.lr_scheduler

    def training_step(self, *arguments: Any, **more: Any) -> torch.Tensor:
        """Run the Trainer's own step of a micro-batch, then return to the caller."""
        self._returned = False
        with ExitStack() as self._span:
            loss: torch.Tensor = super().training_step(*arguments, **more)
        self.end_micro_batch()
        return loss

    def compute_loss(self, model: nn.Module, *_: Any, **__: Any) -> torch.Tensor:
        """Loss of the case; what the Trainer does from then on is the backward pass."""
        engine = self.engine()
        assert engine is not None, "an engine outlives its loop"
        with engine.span("forward"):
            # the Trainer's copy has all floats, labels too, in the dtype of DeepSpeed
            loss, scaled = engine.losses(model, self.batch)
        self._loss = loss.detach()
        self._span.enter_context(engine.span("backward"))
        return scaled

    def end_micro_batch(self) -> None:
        """Return to the caller, unless this micro-batch has done so."""
        self._span.close()
        if not self._returned:
            self._returned = True
            _return_to_caller(self._loss)

    def _make_scheduler(self) -> Any:
        if not self.is_deepspeed_enabled:
            self.case_scheduler = optimizer.make_scheduler(
                self.optimizer.optimizer, self._context.case.optimizer
            )
            return self.case_scheduler
        if self.accelerator.deepspeed_engine_wrapped is None:
            # found with 5.1.0, unless DeepSpeed makes the optimizer
            raise UnsupportedCase(
                f"the Trainer of transformers {transformers.__version__} does not give this training to "
                "DeepSpeed, and would train without it; use 5.2 or newer, or engine: native or accelerate"
            )
        scheduler = add_scheduler(self.accelerator.deepspeed_engine_wrapped.engine, self._context)
        return scheduler and DeepSpeedSchedulerWrapper(scheduler, self.optimizer)


class TrainerLoop:
    """The loop of a Trainer, in a greenlet: a call stack of its own, in the same thread.

    Only the engine holds it, so that a loop which waits for data ends, and frees the model, with its engine.
    """

    def __init__(self, trainer: SteppedTrainer) -> None:
        """Run *trainer* until it needs the data of the first step: its model is then wrapped."""
        self.trainer = trainer
        self._stack = greenlet(trainer.train)
        self._stack.gr_context = contextvars.copy_context()
        self._resume()

    def run_micro_batch(self, batch: Batch) -> torch.Tensor:
        """Run *batch* forward and backward; return its loss."""
        self.trainer.batch = batch
        loss: torch.Tensor = self._resume()
        return loss

    def update(self) -> None:
        """End the step, from the norm of the gradients to the request for the data of the next one."""
        self._resume()

    def close(self) -> None:
        """End the loop where it waits."""
        if not self._stack.dead:
            self._stack.throw(GreenletExit)

    def _resume(self) -> Any:
        """Continue the loop; return what it returns to its caller."""
        answer = self._stack.switch()
        if self._stack.dead:
            raise RuntimeError(
                f"the loop of the Trainer has ended, after {self.trainer.state.global_step} steps"
            )
        return answer


class _AnnouncedBatches:
    """Micro-batches of one step after another, of which the Trainer takes all before it runs one."""

    def __init__(self, context: RankContext) -> None:
        self._step, self._count = context.step, context.case.batch.gradient_accumulation_steps

    def __iter__(self) -> Iterator[Batch]:
        while True:
            _return_to_caller()
            batches = list(self._step.batches)
            assert len(batches) == self._count, "a feed announces each step"
            yield from batches


def _return_to_caller(answer: Any = None) -> None:
    """Return *answer* to the code that has resumed this greenlet, and wait until it does so again."""
    caller = getcurrent().parent
    assert caller is not None, "the loop runs in a greenlet"
    caller.switch(answer)
