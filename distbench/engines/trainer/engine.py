"""Engines whose steps transformers' Trainer takes, in the worker."""

from __future__ import annotations

import dataclasses
import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from accelerate import PartialState
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedConfig, TrainingArguments
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from distbench.core.errors import Mismatch
from distbench.data._generator_states import GeneratorStates
from distbench.engines._accelerate import (
    USE_DEEPSPEED,
    check_placement,
    forget_accelerator,
    replace_step,
)
from distbench.engines.trainer.loop import SteppedTrainer, TrainerLoop
from distbench.strategies.base import Batch, RankContext, Strategy, UnsupportedCase
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.ddp.engine import DdpEngine, ddp_arguments, reduce_in_dtype
from distbench.strategies.engine import Engine
from distbench.strategies.torch_engine import readback
from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.strategies.torch_engine.modules import listed, load_plain_module
from distbench.strategies.torch_engine.optimizer import make_optimizer
from distbench.strategies.zero import Zero, live_state
from distbench.strategies.zero.engine import ZeroEngine, build_zero


class TrainerSteps(TorchEngine):
    """Steps of the Trainer's loop; a mix-in for engines that define the rest."""

    def __init__(
        self, context: RankContext, module: nn.Module, layers: list[nn.Module], loop: TrainerLoop, *more: Any
    ) -> None:
        self._loop = loop
        self._gradient_dtype: str | None = None
        super().__init__(context, module, layers, *more)
        loop.trainer.engine = weakref.ref(self)

    def make_optimizer(self, layers: list[nn.Module]) -> torch.optim.Optimizer:
        return self._loop.trainer.made_optimizer

    def make_scheduler(self) -> LambdaLR | None:
        return self._loop.trainer.case_scheduler

    def losses(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        # the Trainer may have a part of the module
        loss = self._loss(self.module, batch)
        return loss, loss

    def forward_backward(self, micro_batch: Batch) -> torch.Tensor:
        return self._loop.run_micro_batch(micro_batch)

    def step(self) -> None:
        if self._gradient_dtype is None:
            self._gradient_dtype = readback.dtype_name(gradient.dtype for gradient in self._gradients())
        with self.span("optimizer"):
            self._loop.update()

    def effective_settings(self) -> dict[str, Any]:
        settings = super().effective_settings()
        # the Trainer frees gradients at the end of each step
        settings["dtypes"]["gradients"] = self._gradient_dtype or None
        return settings

    def close(self) -> None:
        self._loop.close()
        super().close()


class TrainerDdpEngine(TrainerSteps, DdpEngine):
    """DDP that the Trainer wraps, reduces and updates."""

    def forward_backward(self, micro_batch: Batch) -> torch.Tensor:
        with self.explained_errors():
            return super().forward_backward(micro_batch)


class TrainerZeroEngine(ZeroEngine):
    """DeepSpeed's engine that the Trainer creates and calls."""

    def __init__(self, context: RankContext, engine: Any, layers: list[nn.Module], loop: TrainerLoop) -> None:
        super().__init__(context, engine, layers)
        self._loop = loop
        trainer = loop.trainer
        trainer.engine = weakref.ref(self)

        def step(*_: Any, **__: Any) -> None:
            # gradients can be read now, as before the step of other engines
            trainer.end_micro_batch()
            take_step()

        take_step = replace_step(engine, step)

    def losses(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        loss = self._loss(model, batch)
        return loss, live_state.scale_loss(self._engine, loss)

    def forward_backward(self, micro_batch: Batch) -> torch.Tensor:
        return self._loop.run_micro_batch(micro_batch)

    def step(self) -> None:
        with self.span("optimizer"):
            self._loop.update()

    def close(self) -> None:
        self._loop.close()
        super().close()


def build_trainer(strategy: Strategy, context: RankContext) -> Engine:
    """Engine of this rank.

    Raises:
        Mismatch: the Trainer is not in the process group, on another device, or in another precision.
        UnsupportedCase: the Trainer can't keep a setting of the case, or of the model.
    """
    forget_accelerator()
    try:
        if isinstance(strategy, Zero):
            return _build_zero(strategy, context)
        assert isinstance(strategy, DistributedDataParallel)
        return _build_ddp(strategy, context)
    finally:
        # models of transformers that are made from now on would be sharded too
        unset_hf_deepspeed_config()


def _build_ddp(strategy: DistributedDataParallel, context: RankContext) -> TrainerDdpEngine:
    module, layers = load_plain_module(context)
    made = make_optimizer(module, layers, context.case.optimizer)
    loop = start_loop(context, module, made, _ddp_arguments(strategy))
    engine = TrainerDdpEngine(context, loop.trainer.model_wrapped, layers, loop)
    reduce_in_dtype(engine.module, context.case.precision)
    return engine


def _build_zero(strategy: Zero, context: RankContext) -> ZeroEngine:
    loops: list[TrainerLoop] = []

    def initialize(
        *, model: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any], **_: Any
    ) -> Sequence[Any]:
        # the Trainer refuses a configuration that differs from its own arguments
        dtypes = {name: config[name]["enabled"] for name in ("bf16", "fp16")}
        loops.append(start_loop(context, model, optimizer, {"deepspeed": config, **dtypes}))
        return [loops[0].trainer.model_wrapped]

    def engine_of(context: RankContext, engine: Any, layers: list[nn.Module]) -> ZeroEngine:
        return TrainerZeroEngine(context, engine, layers, loops[0])

    return build_zero(strategy, context, engine_of, initialize)


def _ddp_arguments(strategy: DistributedDataParallel) -> dict[str, Any]:
    """Arguments of the Trainer for the options of *strategy*."""
    changed = {f"ddp_{name}": value for name, value in ddp_arguments(strategy).items() if value}
    known = {each.name for each in dataclasses.fields(TrainingArguments)}
    if unknown := sorted(changed.keys() - known):
        raise UnsupportedCase(
            f"the Trainer of transformers {transformers.__version__} has no argument {unknown[0]}; use a "
            "newer one, or engine: native"
        )
    # its default is to find them, which takes time in each step
    return {"ddp_find_unused_parameters": False, **changed}


def start_loop(
    context: RankContext, module: nn.Module, made_optimizer: torch.optim.Optimizer, more: dict[str, Any]
) -> TrainerLoop:
    """Loop of a Trainer that has wrapped *module*, and waits for the data of the first step."""
    _check_modes(module)
    before = GeneratorStates()
    try:
        _make_state(context, "deepspeed" in more)
        arguments = TrainingArguments(**_arguments(context, module), **more)
        with _config_kept(module):
            trainer = SteppedTrainer(context, module, made_optimizer, arguments)
        check_placement("trainer", trainer.accelerator, context)
        _check_precision(trainer, more)
        return TrainerLoop(trainer)
    finally:
        before.restore()


def _arguments(context: RankContext, module: nn.Module) -> dict[str, Any]:
    """Arguments of the Trainer that make its training that of the case, and nothing else."""
    case = context.case
    return {
        "output_dir": str(context.trial_folder),
        "per_device_train_batch_size": case.batch.micro_batch_size,
        "gradient_accumulation_steps": case.batch.gradient_accumulation_steps,
        "max_grad_norm": case.optimizer.clip_grad_norm or 0.0,
        "lr_scheduler_type": "constant",
        # distbench decides when the training ends
        "max_steps": sys.maxsize,
        "seed": case.seed,
        "use_cpu": context.device.type == "cpu",
        "use_cache": getattr(getattr(module, "config", None), "use_cache", False),
        "accelerator_config": {"use_configured_state": True},
        "eval_strategy": "no",
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }


def _make_state(context: RankContext, with_deepspeed: bool) -> None:
    """Put Accelerate into the process group of the rank.

    On a CPU, a Trainer with DeepSpeed would take its process for the only one, and train on all rows.
    """
    on_cpu = context.device.type == "cpu"
    if with_deepspeed:
        os.environ[USE_DEEPSPEED] = "true"
    PartialState(cpu=on_cpu and not with_deepspeed, backend="gloo" if on_cpu else None)


def _check_precision(trainer: SteppedTrainer, more: dict[str, Any]) -> None:
    """Raise Mismatch if the Trainer would cast: the model computes in the dtype of the case by itself."""
    expected = next((name for name in ("bf16", "fp16") if more.get(name)), "no")
    if (found := trainer.accelerator.mixed_precision) != expected:
        raise Mismatch(
            f"trainer: expected mixed precision {expected!r}, found {found!r}; unset "
            "ACCELERATE_MIXED_PRECISION"
        )


def _check_modes(module: nn.Module) -> None:
    """Raise UnsupportedCase if parts of *module* stay in evaluation mode, which the Trainer would end."""
    fixed = [name for name, part in module.named_modules() if not part.training]
    if not fixed:
        return
    module.train()
    if changed := [name for name in fixed if module.get_submodule(name).training]:
        raise UnsupportedCase(
            "the Trainer sets all of the model to training mode in each step, but parts of it are in "
            f"evaluation mode ({listed(changed)}); let train() of the model keep them there, or use engine: "
            "native"
        )


@contextmanager
def _config_kept(module: nn.Module) -> Iterator[None]:
    """Hide the attribute ``config`` of a model that is none of transformers: the Trainer writes into it."""
    config = vars(module).get("config")
    if config is None or isinstance(config, PreTrainedConfig):
        yield
        return
    del module.config
    try:
        yield
    finally:
        module.config = config
