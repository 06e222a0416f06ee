"""The worker's side of ``zero``: DeepSpeed's engine, and reading it back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from torch import nn

from distbench import optimizers
from distbench.core import lr_schedule
from distbench.core.case import Case
from distbench.strategies.base import Setting
from distbench.strategies.engine import Engine, FullState
from distbench.strategies.torch_engine import (
    compilation,
    construction,
    float8,
    forwards,
    modules,
    naming,
    optimizer,
    reading,
    recomputation,
)
from distbench.strategies.torch_engine.global_mean import GlobalMean
from distbench.strategies.zero import Zero, checkpoint, gradients, masters, pieces, settings
from distbench.strategies.zero.config import Elements, configuration, for_model
from distbench.strategies.zero.groups import converter
from distbench.strategies.zero.memory import book
from distbench.workloads import weights
from distbench.workloads.base import Workload

T = TypeVar("T")


class ZeroEngine(Engine):
    """DeepSpeed's engine behind the loop's four calls."""

    def __init__(self, setting: Setting, engine: Any, layers: list[nn.Module]) -> None:
        self._setting = setting
        self._engine = engine
        self._loss = GlobalMean(setting)
        self._compute = modules.ComputeProbe(engine.module, layers)
        self._micro = 0

    @property
    def live(self) -> object:
        return self._engine

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if self._micro > 0:
            # DeepSpeed counts micro-batches by calls of step; it updates after the last only
            with self.span("optimizer"):
                self._engine.step()
        self._micro += 1
        with self.span("forward"):
            loss = self._loss(self._engine, micro_batch)
        with self.span("backward"):
            self._engine.backward(gradients.scaled(self._engine, loss))
        return loss.detach()

    def step(self) -> None:
        self._micro = 0
        with self.span("optimizer"):
            self._engine.step()

    def grad_norm(self) -> float:
        squares = [reading.sum_of_squares(gradient) for _, gradient in gradients.each(self._engine)]
        return math.sqrt(torch.stack(squares).sum()) / gradients.loss_scale(self._engine)

    def full_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, gradient in gradients.each(self._engine):
            yield name, gradients.exact(self._engine, gradient)

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        separate = masters.of_stage_0(self._engine)
        for name, parameter in pieces.named(self._engine):
            yield name, masters.whole(parameter, separate)

    def buffers(self) -> dict[str, torch.Tensor]:
        buffers = pieces.model_of(self._engine).named_buffers()
        return {weights.plain_name(name): buffer.detach().cpu() for name, buffer in buffers}

    def evaluate(self, judge: Callable[[nn.Module], T]) -> T:
        return modules.evaluated(self._engine, judge)

    @property
    def skipped_steps(self) -> int:
        return int(self._engine.skipped_steps)

    def standing_whole(self) -> int:
        sharded = [p for p in self._engine.module.parameters() if hasattr(p, "ds_status")]
        return sum(p.ds_numel for p in sharded if p.ds_status is not ZeroParamStatus.NOT_AVAILABLE)

    def effective(self) -> dict[str, Any]:
        engine = self._engine
        return {
            "engine": type(engine).__qualname__,
            "world_size": math.prod(pieces.mesh(engine).values()),
            **reading.counts(engine.module.parameters(), pieces.elements),
            "optimizer": optimizer.describe_optimizer(engine.basic_optimizer),
            "dtypes": {
                "parameters": reading.dtype_name(p.dtype for p in engine.module.parameters()),
                "compute": self._compute.dtype,
                "gradients": gradients.dtype(engine),
                "reduce": reading.dtype_name([engine.communication_data_type]),
                "master": reading.dtype_name(p.dtype for p in masters.updated(engine)),
                "optimizer_state": optimizer.state_dtype(engine.basic_optimizer),
            },
            **gradients.describe_scale(engine),
            "clip_grad_norm": engine.gradient_clipping() or None,
            "micro_batch_size": self._compute.rows,
            "gradient_accumulation_steps": engine.gradient_accumulation_steps(),
            **recomputation.describe_checkpointing(engine.module),
            **compilation.describe_compilation(engine.module),
            **float8.describe_float8(engine.module),
            "parameters_on": reading.device_name(engine.module.parameters()),
            "optimizer_state_on": reading.device_name(masters.updated(engine)),
            **settings.describe(engine),
            **({"remarks": remarks} if (remarks := self.remarks()) else {}),
        }

    def remarks(self) -> list[str]:
        """Sentences on behaviour of the strategy that may surprise."""
        if self._engine.zero_optimization_stage() < 3:
            return []
        return construction.remark(self._setting.workload, "host memory")

    def close(self) -> None:
        self._engine.destroy()

    def save(self, folder: Path) -> None:
        checkpoint.save(self._engine, folder)

    def load(self, folder: Path) -> None:
        checkpoint.load(self._engine, folder)

    def consolidate(self) -> FullState:
        return FullState(
            reading.on_host(self.full_parameters()),
            self.buffers(),
            checkpoint.gather_optimizer(self._engine),
            optimizer.scheduled_updates(self._engine.lr_scheduler),
        )

    def load_full(self, state: FullState) -> None:
        self._spread(state)
        optimizer.schedule_from(self._engine.lr_scheduler, state.updates)

    def _spread(self, state: FullState) -> None:
        checkpoint.spread(self._engine, masters.updated(self._engine), state)

    def memory(self) -> dict[str, int]:
        ledger = reading.Ledger(self._setting.device)
        self.book(ledger)
        return ledger.bytes

    def book(self, ledger: reading.Ledger) -> None:
        """Book all that this rank keeps."""
        book(ledger, self._engine, masters.updated(self._engine))


def build_zero(strategy: Zero, setting: Setting) -> ZeroEngine:
    """Engine of this rank."""
    config = configuration(strategy, setting.case, for_model(strategy, elements(setting.workload)))
    return ZeroEngine(setting, *initialized(strategy, setting, config))


def initialized(strategy: Zero, setting: Setting, config: dict[str, Any]) -> tuple[Any, list[nn.Module]]:
    """DeepSpeed's engine of this rank by *config*, and the layers of its module."""
    connect(strategy, setting.case)
    compute, master = dtypes(setting.case)
    if strategy.stage == 3:
        module = _sharded(setting, config)
    else:
        # DeepSpeed makes it of this dtype, and master weights of that; the weights were rounded through it
        module = weights.loaded(setting.workload, setting.weights, setting.device, compute, buffers=master)
    if strategy.tensor_parallelism.devices > 1 and (splits := setting.workload.splits()):
        naming.check(module, setting.workload, (*splits.columns, *splits.rows))
    layers = modules.prepared_layers(setting.case, module, setting.workload.layers(module))
    # DeepSpeed gives the parameters that dtype, and leaves a batch of floats as it is
    for part in (*layers, module) if compute != master else ():
        forwards.cast_inputs(part, compute)
    return started(strategy, setting, config, module, layers), layers


def dtypes(case: Case) -> tuple[torch.dtype, torch.dtype]:
    """Dtype of the parameters of *case*, and that of its buffers, which DeepSpeed leaves as they are."""
    return weights.DTYPES[case.precision.compute], weights.DTYPES[case.precision.master]


def connect(strategy: Zero, case: Case) -> None:
    """Let DeepSpeed adopt the existing process group; it would assume one rank."""
    # before it: with the group DeepSpeed loads the first of them
    strategy.lend_ops(case)
    deepspeed.init_distributed(dist_init_required=False)


def started(
    strategy: Zero, setting: Setting, config: dict[str, Any], module: nn.Module, layers: list[nn.Module]
) -> Any:
    """DeepSpeed's engine around *module*, whose layers are *layers*, by *config*."""
    engine, *_ = deepspeed.initialize(
        model=module,
        # of one that the configuration names it makes its own
        optimizer=None if "optimizer" in config else _optimizer(strategy, setting, module, layers),
        # it steps it after each update that it takes, and after no other
        lr_scheduler=_scheduler(setting),
        config=config,
        dist_init_required=False,
    )
    masters.undo_trial_step(engine)
    return engine


def elements(workload: Workload) -> Elements:
    """What DeepSpeed's sizes are chosen by."""
    skeleton = weights.skeleton(workload)
    parameters = [p.numel() for p in skeleton.parameters()]
    layers = [sum(p.numel() for p in layer.parameters()) for layer in workload.layers(skeleton)]
    return Elements(sum(parameters), max(layers, default=max(parameters)), max(parameters))


def _sharded(setting: Setting, config: dict[str, Any]) -> nn.Module:
    """Module with each parameter sharded, and the weights loaded; no more than one layer is ever whole.

    But for the host's copy of a module that can't be built on the meta device.
    """
    (compute, master), on_meta = dtypes(setting.case), setting.workload.on_meta
    module = weights.cast(weights.skeleton(setting.workload), compute, buffers=master)
    shard = converter(config)
    with weights.opened(setting.weights) as initial, torch.no_grad():
        make = weights.Maker(module, initial, setting.device)
        for part in module.modules():
            if on_meta:
                make(part)
            shard(part.parameters(recurse=False))
        for name, parameter in module.named_parameters():
            _fill(parameter, initial, weights.plain_name(name))
        for name, buffer in module.named_buffers():
            weights.fill(buffer, initial, weights.plain_name(name))
    return module.to(setting.device) if setting.device.type == "cuda" else module


def _fill(parameter: Any, initial: weights.Initial, name: str) -> None:
    """Make this rank's shard of *parameter*, which stage 3 cuts as if it were flat."""
    shard = parameter.ds_tensor
    # hpZ's copy was made of what stood there before, and DeepSpeed keeps it until the first update
    parameter.ds_secondary_tensor = None
    if shard.final_location == OffloadDeviceEnum.nvme:
        # it is on the disk already; a modified whole is written there again
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            weights.fill(parameter.data, initial, name)
        return
    start = dist.get_rank(pieces.shard_group(parameter)) * shard.numel()
    # the last shards are longer than what is left for them
    own = max(0, min(shard.numel(), parameter.ds_numel - start))
    initial.fill(shard.view(-1)[:own], name, start)


def _optimizer(strategy: Zero, setting: Setting, module: nn.Module, layers: list[nn.Module]) -> Any:
    spec = setting.case.optimizer
    if strategy.optimizer_kernel == "torch":
        return optimizer.make_optimizer(module, layers, spec)
    shared = optimizers.kind_of(spec).arguments(spec)
    if strategy.offload_optimizer != "none" or setting.device.type == "cpu":
        return deepspeed.ops.adam.DeepSpeedCPUAdam(module.parameters(), adamw_mode=True, **shared)
    return deepspeed.ops.adam.FusedAdam(module.parameters(), adam_w_mode=True, **shared)


def _scheduler(setting: Setting) -> Callable[[torch.optim.Optimizer], Any] | None:
    spec = setting.case.optimizer
    if not lr_schedule.is_scheduled(spec):
        return None
    return lambda made: optimizer.make_scheduler(made, spec)
