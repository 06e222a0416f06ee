"""Engine of ``zero``, in the worker: DeepSpeed's engine, and its settings read back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import deepspeed
import torch
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from torch import nn

from distbench.strategies.base import RankContext
from distbench.strategies.engine import Engine, TrainingState
from distbench.strategies.torch_engine import float8, modules, optimizer, readback
from distbench.strategies.torch_engine.global_mean import GlobalMean
from distbench.strategies.torch_engine.units import construction_remark
from distbench.strategies.zero import Zero, checkpoint, live_state
from distbench.strategies.zero.build import Initializer, create_engine, model_sizes
from distbench.strategies.zero.config import configuration, sizes_for_model
from distbench.strategies.zero.readback import count_engine_storages, engine_settings
from distbench.workloads import weights

T = TypeVar("T")


class ZeroEngine(Engine):
    """DeepSpeed's engine with the interface of ``Engine``."""

    def __init__(self, context: RankContext, engine: Any, layers: list[nn.Module]) -> None:
        self._context = context
        self._engine = engine
        self._loss = GlobalMean(context)
        self._probe = modules.ComputeProbe(engine.module, layers)
        self._micro_batch_count = 0

    @property
    def framework_engine(self) -> object:
        return self._engine

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if self._micro_batch_count > 0:
            with self.span("optimizer"):
                self._end_micro_batch()
        self._micro_batch_count += 1
        with self.span("forward"):
            loss = self._loss(self._engine, micro_batch)
        with self.span("backward"):
            self._backward(live_state.scale_loss(self._engine, loss))
        return loss.detach()

    def step(self) -> None:
        self._micro_batch_count = 0
        with self.span("optimizer"):
            self._step_optimizer()

    def grad_norm(self) -> float:
        squares = [
            readback.sum_of_squares(gradient) for _, gradient in live_state.full_gradients(self._engine)
        ]
        return math.sqrt(torch.stack(squares).sum()) / live_state.loss_scale(self._engine)

    def full_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, gradient in live_state.full_gradients(self._engine):
            yield name, live_state.unscale(self._engine, gradient)

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        separate = live_state.unlinked_masters(self._engine)
        for name, parameter in live_state.named_parameters(self._engine):
            yield name, live_state.full_master(parameter, separate)

    def buffers(self) -> dict[str, torch.Tensor]:
        buffers = live_state.underlying_module(self._engine).named_buffers()
        return {weights.plain_name(name): buffer.detach().cpu() for name, buffer in buffers}

    def evaluate(self, score: Callable[[nn.Module], T]) -> T:
        return modules.run_evaluation(self._engine, score)

    @property
    def skipped_steps(self) -> int:
        return int(self._engine.skipped_steps)

    def unsharded_elements(self) -> int:
        sharded = [p for p in self._engine.module.parameters() if hasattr(p, "ds_status")]
        return sum(p.ds_numel for p in sharded if p.ds_status is not ZeroParamStatus.NOT_AVAILABLE)

    def effective_settings(self) -> dict[str, Any]:
        engine = self._engine
        return {
            "engine": type(engine).__qualname__,
            "world_size": math.prod(live_state.mesh_sizes(engine).values()),
            **readback.parameter_counts(engine.module.parameters(), live_state.full_elements),
            "optimizer": optimizer.describe_optimizer(engine.basic_optimizer),
            "dtypes": {
                "parameters": readback.dtype_name(p.dtype for p in engine.module.parameters()),
                "compute": self._probe.dtype,
                "gradients": live_state.gradient_dtype(engine),
                "reduce": readback.dtype_name([engine.communication_data_type]),
                "master": readback.dtype_name(p.dtype for p in live_state.updated_tensors(engine)),
                "optimizer_state": optimizer.state_dtype(engine.basic_optimizer),
            },
            **live_state.describe_scale(engine),
            "clip_grad_norm": engine.gradient_clipping() or None,
            "micro_batch_size": self._probe.samples,
            "gradient_accumulation_steps": engine.gradient_accumulation_steps(),
            **modules.describe_checkpointing(engine.module),
            **modules.describe_compilation(engine.module),
            **float8.describe_float8(engine.module),
            "parameters_on": readback.device_name(engine.module.parameters()),
            "optimizer_state_on": readback.device_name(live_state.updated_tensors(engine)),
            **engine_settings(engine),
            **({"remarks": remarks} if (remarks := self.remarks()) else {}),
        }

    def remarks(self) -> list[str]:
        """Sentences on unexpected behavior of the strategy."""
        if self._engine.zero_optimization_stage() < 3:
            return []
        return construction_remark(self._context.workload, "host memory")

    def close(self) -> None:
        self._engine.destroy()

    def save_sharded(self, folder: Path) -> None:
        checkpoint.save(self._engine, folder)

    def load_sharded(self, folder: Path) -> None:
        checkpoint.load(self._engine, folder)

    def gather_state(self) -> TrainingState:
        return TrainingState(
            readback.copy_to_host(self.full_parameters()),
            self.buffers(),
            checkpoint.gather_optimizer(self._engine),
            optimizer.scheduled_updates(self._engine.lr_scheduler),
        )

    def scatter_state(self, state: TrainingState) -> None:
        self._scatter_state(state)
        optimizer.restore_schedule(self._engine.lr_scheduler, state.scheduled_updates)

    def _backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of the scaled *loss* of a micro-batch."""
        self._engine.backward(loss)

    def _end_micro_batch(self) -> None:
        """End a micro-batch that is not the last of its step."""
        # DeepSpeed counts micro-batches by calls of step; it updates only after the last
        self._engine.step()

    def _step_optimizer(self) -> None:
        """Update the parameters, after the last micro-batch of a step."""
        self._engine.step()

    def _scatter_state(self, state: TrainingState) -> None:
        checkpoint.scatter_state(self._engine, live_state.updated_tensors(self._engine), state)

    def memory_by_kind(self) -> dict[str, int]:
        ledger = readback.StorageCounter(self._context.device)
        self.count_storages(ledger)
        return ledger.bytes

    def count_storages(self, counter: readback.StorageCounter) -> None:
        """Count all storages of this rank."""
        count_engine_storages(counter, self._engine, live_state.updated_tensors(self._engine))


def build_zero(
    strategy: Zero,
    context: RankContext,
    engine_class: Callable[..., ZeroEngine] = ZeroEngine,
    initialize: Initializer = deepspeed.initialize,
) -> ZeroEngine:
    """Engine of this rank.

    *engine_class* makes it from the context, DeepSpeed's engine and the layers of its module; *initialize*
    makes DeepSpeed's engine.
    """
    config = configuration(strategy, context.case, sizes_for_model(strategy, model_sizes(context.workload)))
    return engine_class(context, *create_engine(strategy, context, config, initialize))
