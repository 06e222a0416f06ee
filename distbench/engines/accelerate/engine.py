"""Engines whose steps Accelerate takes, in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DeepSpeedPlugin, DistributedDataParallelKwargs, GradientAccumulationPlugin
from torch import nn

from distbench.core.errors import Mismatch
from distbench.engines._accelerate import add_scheduler, check_placement, forget_accelerator, replace_step
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.ddp.engine import DdpEngine, ddp_arguments, reduce_in_dtype
from distbench.strategies.engine import Engine
from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.strategies.torch_engine.modules import load_plain_module
from distbench.strategies.zero import Zero
from distbench.strategies.zero.engine import ZeroEngine, build_zero


class AcceleratorSteps(TorchEngine):
    """Steps of Accelerate on a module that it has prepared; a mix-in for engines that define the rest."""

    def use_accelerator(self, accelerator: Accelerator) -> None:
        """Take steps with *accelerator*."""
        self._accelerator = accelerator
        # a prepared scheduler would take a step for each process
        self._prepared = accelerator.prepare_optimizer(self._optimizer)

    def clip(self, limit: float) -> None:
        self._accelerator.clip_grad_norm_(self.module.parameters(), limit)

    def _gradient_sync(self, last: bool) -> AbstractContextManager[Any]:
        accumulates: AbstractContextManager[Any] = self._accelerator.accumulate(self.module)
        return accumulates

    def _zero_grad(self) -> None:
        self._prepared.zero_grad()

    def _backward(self, loss: torch.Tensor) -> None:
        self._accelerator.backward(loss)

    def _step_optimizer(self) -> None:
        self._prepared.step()


class AccelerateDdpEngine(AcceleratorSteps, DdpEngine):
    """DDP that Accelerate wraps, reduces and updates."""


class AccelerateZeroEngine(ZeroEngine):
    """DeepSpeed's engine that Accelerate creates and calls.

    Accelerate updates at the end of the last backward pass. That call is made in ``step``, so that gradients
    can be read before it.
    """

    def __init__(
        self, context: RankContext, engine: Any, layers: list[nn.Module], accelerator: Accelerator
    ) -> None:
        super().__init__(context, engine, layers)
        self._accelerator = accelerator
        self._take_step = replace_step(engine, _do_nothing)

    def _backward(self, loss: torch.Tensor) -> None:
        with self._accelerator.accumulate(self._engine):
            self._accelerator.backward(loss)

    def _end_micro_batch(self) -> None:
        """Do nothing: Accelerate tells DeepSpeed of the last micro-batch in its backward pass."""

    def _step_optimizer(self) -> None:
        self._take_step()


def build_accelerate(strategy: Strategy, context: RankContext) -> Engine:
    """Engine of this rank.

    Raises:
        Mismatch: Accelerate is not in the process group, or on another device.
    """
    forget_accelerator()
    if isinstance(strategy, Zero):
        return _build_zero(strategy, context)
    assert isinstance(strategy, DistributedDataParallel)
    module, layers = load_plain_module(context)
    arguments = {key: value for key, value in ddp_arguments(strategy).items() if value is not None}
    accelerator = make_accelerator(
        context,
        cpu=context.device.type == "cpu",
        kwargs_handlers=[DistributedDataParallelKwargs(**arguments)],
    )
    engine = AccelerateDdpEngine(context, accelerator.prepare_model(module), layers)
    engine.use_accelerator(accelerator)
    reduce_in_dtype(engine.module, context.case.precision)
    return engine


def _build_zero(strategy: Zero, context: RankContext) -> Engine:
    made: list[Accelerator] = []

    def initialize(
        *, model: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any], **_: Any
    ) -> Sequence[Any]:
        accelerator = make_accelerator(context, deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config))
        made.append(accelerator)
        prepared: Sequence[Any] = accelerator.prepare(model, optimizer)
        add_scheduler(prepared[0], context)
        return prepared

    def engine_of(context: RankContext, engine: Any, layers: list[nn.Module]) -> ZeroEngine:
        return AccelerateZeroEngine(context, engine, layers, made[0])

    return build_zero(strategy, context, engine_of, initialize)


def make_accelerator(context: RankContext, **arguments: Any) -> Accelerator:
    """Accelerator for the steps of the case.

    The model computes in the dtype of the case by itself, so that all engines round alike.

    Raises:
        Mismatch: it is not in the process group, so that every rank would train alone, on another device, or
            accumulates over another number of micro-batches.
    """
    if "deepspeed_plugin" in arguments and context.device.type == "cpu":
        # without a backend every rank would take itself for the only one, and train on all rows
        PartialState(backend="gloo")
    steps = context.case.batch.gradient_accumulation_steps
    accelerator = Accelerator(
        mixed_precision="no",
        # a number of steps would yield to a variable that accelerate launch sets
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=steps),
        step_scheduler_with_optimizer=False,
        **arguments,
    )
    check_placement("accelerate", accelerator, context)
    if (found := accelerator.gradient_accumulation_steps) != steps:
        raise Mismatch(f"accelerate: expected gradient_accumulation_steps = {steps}, found {found}")
    return accelerator


def _do_nothing(*_: Any, **__: Any) -> None:
    """Hold back a call of DeepSpeed's ``step``."""
