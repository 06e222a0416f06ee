"""Engine of ``zero``, in the worker: DeepSpeed's engine, and its settings read back."""

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
from distbench.strategies.base import RankContext
from distbench.strategies.engine import Engine, TrainingState
from distbench.strategies.torch_engine import (
    compilation,
    construction,
    float8,
    forwards,
    module_names,
    modules,
    optimizer,
    readback,
    recomputation,
)
from distbench.strategies.torch_engine.global_mean import GlobalMean
from distbench.strategies.zero import Zero, checkpoint, gradients, master_weights, rank_partitions, settings
from distbench.strategies.zero.config import ModelSizes, configuration, sizes_for_model
from distbench.strategies.zero.groups import parameter_sharder
from distbench.strategies.zero.memory import count_engine_storages
from distbench.workloads import weights
from distbench.workloads.base import Workload

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
            # DeepSpeed counts micro-batches by calls of step; it updates only after the last
            with self.span("optimizer"):
                self._engine.step()
        self._micro_batch_count += 1
        with self.span("forward"):
            loss = self._loss(self._engine, micro_batch)
        with self.span("backward"):
            self._engine.backward(gradients.scale_loss(self._engine, loss))
        return loss.detach()

    def step(self) -> None:
        self._micro_batch_count = 0
        with self.span("optimizer"):
            self._engine.step()

    def grad_norm(self) -> float:
        squares = [
            readback.sum_of_squares(gradient) for _, gradient in gradients.full_gradients(self._engine)
        ]
        return math.sqrt(torch.stack(squares).sum()) / gradients.loss_scale(self._engine)

    def full_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, gradient in gradients.full_gradients(self._engine):
            yield name, gradients.unscale(self._engine, gradient)

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        separate = master_weights.unlinked_masters(self._engine)
        for name, parameter in rank_partitions.named_parameters(self._engine):
            yield name, master_weights.full_master(parameter, separate)

    def buffers(self) -> dict[str, torch.Tensor]:
        buffers = rank_partitions.underlying_module(self._engine).named_buffers()
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
            "world_size": math.prod(rank_partitions.mesh_sizes(engine).values()),
            **readback.parameter_counts(engine.module.parameters(), rank_partitions.full_elements),
            "optimizer": optimizer.describe_optimizer(engine.basic_optimizer),
            "dtypes": {
                "parameters": readback.dtype_name(p.dtype for p in engine.module.parameters()),
                "compute": self._probe.dtype,
                "gradients": gradients.gradient_dtype(engine),
                "reduce": readback.dtype_name([engine.communication_data_type]),
                "master": readback.dtype_name(p.dtype for p in master_weights.updated_tensors(engine)),
                "optimizer_state": optimizer.state_dtype(engine.basic_optimizer),
            },
            **gradients.describe_scale(engine),
            "clip_grad_norm": engine.gradient_clipping() or None,
            "micro_batch_size": self._probe.samples,
            "gradient_accumulation_steps": engine.gradient_accumulation_steps(),
            **recomputation.describe_checkpointing(engine.module),
            **compilation.describe_compilation(engine.module),
            **float8.describe_float8(engine.module),
            "parameters_on": readback.device_name(engine.module.parameters()),
            "optimizer_state_on": readback.device_name(master_weights.updated_tensors(engine)),
            **settings.engine_settings(engine),
            **({"remarks": remarks} if (remarks := self.remarks()) else {}),
        }

    def remarks(self) -> list[str]:
        """Sentences on unexpected behavior of the strategy."""
        if self._engine.zero_optimization_stage() < 3:
            return []
        return construction.construction_remark(self._context.workload, "host memory")

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

    def _scatter_state(self, state: TrainingState) -> None:
        checkpoint.scatter_state(self._engine, master_weights.updated_tensors(self._engine), state)

    def memory_by_kind(self) -> dict[str, int]:
        ledger = readback.StorageCounter(self._context.device)
        self.count_storages(ledger)
        return ledger.bytes

    def count_storages(self, counter: readback.StorageCounter) -> None:
        """Count all storages of this rank."""
        count_engine_storages(counter, self._engine, master_weights.updated_tensors(self._engine))


def build_zero(strategy: Zero, context: RankContext) -> ZeroEngine:
    """Engine of this rank."""
    config = configuration(strategy, context.case, sizes_for_model(strategy, model_sizes(context.workload)))
    return ZeroEngine(context, *create_engine(strategy, context, config))


def create_engine(
    strategy: Zero, context: RankContext, config: dict[str, Any]
) -> tuple[Any, list[nn.Module]]:
    """DeepSpeed's engine of this rank, configured by *config*, and the layers of its module."""
    init_distributed(strategy, context.case)
    compute, master = dtypes(context.case)
    if strategy.stage == 3:
        module = _sharded_module(context, config)
    else:
        # DeepSpeed makes master weights from this dtype, through which the initial weights were rounded
        module = weights.load_module(
            context.workload, context.weights_file, context.device, compute, buffers=master
        )
    if strategy.tensor_parallelism.ranks > 1 and (splits := context.workload.tensor_splits()):
        module_names.check_module_names(module, context.workload, (*splits.colwise, *splits.rowwise))
    layers = modules.prepare_layers(context.case, module, context.workload.layers(module))
    # DeepSpeed converts the parameters to that dtype, and does not convert a batch of floats
    for part in (*layers, module) if compute != master else ():
        forwards.cast_inputs(part, compute)
    return initialize_deepspeed(strategy, context, config, module, layers), layers


def dtypes(case: Case) -> tuple[torch.dtype, torch.dtype]:
    """Dtype of the parameters of *case*, and that of its buffers, which DeepSpeed does not convert."""
    return weights.DTYPES[case.precision.compute], weights.DTYPES[case.precision.master]


def init_distributed(strategy: Zero, case: Case) -> None:
    """Make DeepSpeed adopt the existing process group; it would assume one rank."""
    # before that: with the group DeepSpeed loads the first of them
    strategy.preload_ops(case)
    deepspeed.init_distributed(dist_init_required=False)


def initialize_deepspeed(
    strategy: Zero, context: RankContext, config: dict[str, Any], module: nn.Module, layers: list[nn.Module]
) -> Any:
    """DeepSpeed's engine around *module*, whose layers are *layers*, configured by *config*."""
    engine, *_ = deepspeed.initialize(
        model=module,
        # an optimizer named in the configuration would be created by DeepSpeed
        optimizer=None if "optimizer" in config else _optimizer(strategy, context, module, layers),
        # DeepSpeed steps it after each update that it takes, and only then
        lr_scheduler=_scheduler(context),
        config=config,
        dist_init_required=False,
    )
    master_weights.undo_dry_run_step(engine)
    return engine


def model_sizes(workload: Workload) -> ModelSizes:
    """Model sizes from which DeepSpeed's sizes are chosen."""
    skeleton = weights.meta_module(workload)
    parameters = [p.numel() for p in skeleton.parameters()]
    layers = [sum(p.numel() for p in layer.parameters()) for layer in workload.layers(skeleton)]
    return ModelSizes(sum(parameters), max(layers, default=max(parameters)), max(parameters))


def _sharded_module(context: RankContext, config: dict[str, Any]) -> nn.Module:
    """Module with each parameter sharded, and the weights loaded; at most one layer is unsharded at a time.

    Except for the host's copy of a module that can't be built on the meta device.
    """
    (compute, master), on_meta = dtypes(context.case), context.workload.on_meta
    module = weights.cast(weights.meta_module(context.workload), compute, buffers=master)
    shard = parameter_sharder(config)
    with weights.open_weights(context.weights_file) as initial, torch.no_grad():
        make = weights.ModuleMaterialiser(module, initial, context.device)
        for part in module.modules():
            if on_meta:
                make(part)
            shard(part.parameters(recurse=False))
        for name, parameter in module.named_parameters():
            _initialize_shard(parameter, initial, weights.plain_name(name))
        for name, buffer in module.named_buffers():
            weights.fill_tensor(buffer, initial, weights.plain_name(name))
    return module.to(context.device) if context.device.type == "cuda" else module


def _initialize_shard(parameter: Any, initial: weights.WeightFile, name: str) -> None:
    """Initialize this rank's shard of *parameter*, which stage 3 shards as if it were flat."""
    shard = parameter.ds_tensor
    # hpZ's copy was made from the previous values, and DeepSpeed keeps it until the first update
    parameter.ds_secondary_tensor = None
    if shard.final_location == OffloadDeviceEnum.nvme:
        # the shard is on the disk already; after a change the full parameter is written there again
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            weights.fill_tensor(parameter.data, initial, name)
        return
    start = dist.get_rank(rank_partitions.shard_group(parameter)) * shard.numel()
    # the last shards are longer than the rest of the tensor
    own = max(0, min(shard.numel(), parameter.ds_numel - start))
    initial.fill(shard.view(-1)[:own], name, start)


def _optimizer(strategy: Zero, context: RankContext, module: nn.Module, layers: list[nn.Module]) -> Any:
    spec = context.case.optimizer
    if strategy.optimizer_kernel == "torch":
        return optimizer.make_optimizer(module, layers, spec)
    shared = optimizers.entry_of(spec).hyper_parameters(spec)
    if strategy.offload_optimizer != "none" or context.device.type == "cpu":
        return deepspeed.ops.adam.DeepSpeedCPUAdam(module.parameters(), adamw_mode=True, **shared)
    return deepspeed.ops.adam.FusedAdam(module.parameters(), adam_w_mode=True, **shared)


def _scheduler(context: RankContext) -> Callable[[torch.optim.Optimizer], Any] | None:
    spec = context.case.optimizer
    if not lr_schedule.is_scheduled(spec):
        return None
    return lambda made: optimizer.make_scheduler(made, spec)
