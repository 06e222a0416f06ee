"""Create DeepSpeed's engine for a case, and its sharded module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum
from deepspeed.utils import groups
from torch import nn

from distbench import optimizers
from distbench.core import lr_schedule
from distbench.core.case import Case
from distbench.strategies.base import RankContext
from distbench.strategies.torch_engine import forwards, modules, optimizer
from distbench.strategies.zero import Zero, live_state
from distbench.strategies.zero.config import ModelSizes
from distbench.workloads import weights
from distbench.workloads.base import Workload

Initializer = Callable[..., Sequence[Any]]
"""``deepspeed.initialize``, or a framework's call of it: takes its arguments by keyword, returns the engine
first."""


def create_engine(
    strategy: Zero,
    context: RankContext,
    config: dict[str, Any],
    initialize: Initializer = deepspeed.initialize,
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
        modules.check_module_names(module, context.workload, (*splits.colwise, *splits.rowwise))
    layers = modules.prepare_layers(context.case, module, context.workload.layers(module))
    # DeepSpeed converts the parameters to that dtype, and does not convert a batch of floats
    for part in (*layers, module) if compute != master else ():
        forwards.cast_inputs(part, compute)
    return initialize_deepspeed(strategy, context, config, module, layers, initialize), layers


def dtypes(case: Case) -> tuple[torch.dtype, torch.dtype]:
    """Dtype of the parameters of *case*, and that of its buffers, which DeepSpeed does not convert."""
    return weights.DTYPES[case.precision.compute], weights.DTYPES[case.precision.master]


def init_distributed(strategy: Zero, case: Case) -> None:
    """Make DeepSpeed adopt the existing process group; it would assume one rank."""
    # before that: with the group DeepSpeed loads the first of them
    strategy.preload_ops(case)
    deepspeed.init_distributed(dist_init_required=False)


def initialize_deepspeed(
    strategy: Zero,
    context: RankContext,
    config: dict[str, Any],
    module: nn.Module,
    layers: list[nn.Module],
    initialize: Initializer = deepspeed.initialize,
) -> Any:
    """DeepSpeed's engine around *module*, whose layers are *layers*, configured by *config*."""
    engine, *_ = initialize(
        model=module,
        # an optimizer named in the configuration would be created by DeepSpeed
        optimizer=None if "optimizer" in config else _optimizer(strategy, context, module, layers),
        # DeepSpeed steps it after each update that it takes, and only then
        lr_scheduler=_scheduler(context),
        config=config,
        dist_init_required=False,
    )
    live_state.link_dealt_parameters(engine)
    live_state.undo_dry_run_step(engine)
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
    start = dist.get_rank(live_state.shard_group(parameter)) * shard.numel()
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


def parameter_sharder(config: dict[str, Any]) -> Callable[[Iterable[nn.Parameter]], None]:
    """Function that moves parameters to the device and shards them by *config*, one after another.

    ``deepspeed.initialize`` does this to a model that already exists, and ``deepspeed.zero.Init`` to each
    module after its constructor. Under that context many constructors fail: they continue with tensors that
    are already sharded (transformers zeroes the row of a padding token), or copy them.
    """
    init = _sharding_context(config)
    # otherwise a linear layer would keep its gathered weight from the forward pass to the backward pass
    init._enable_mem_efficient_linear()
    convert: Callable[[Iterable[nn.Parameter]], None] = init._convert_to_zero_parameters
    return convert


def _sharding_context(config: dict[str, Any]) -> Any:
    if size := config["zero_optimization"].get("mics_shard_size"):
        # without it, some of DeepSpeed's code takes all ranks for a group, and hangs (found with 0.19.6)
        group, _ = dist.new_subgroups(size)
        return _mics_init()(data_parallel_group=group, config_dict_or_path=config)
    # the groups of hpZ outlive an engine, and DeepSpeed refuses to create them again
    secondary = groups._get_zero_param_intra_parallel_group()
    return deepspeed.zero.Init(config_dict_or_path=config, enabled=True, zero_param_parallel_group=secondary)


def _mics_init() -> Any:
    """DeepSpeed's context of MiCS; with gloo it gathers like MiCS without torch's coalescing.

    gloo raises "Backend gloo does not implement startCoalescing" (0.19.6, torch 2.13).
    """
    base = deepspeed.zero.MiCS_Init
    if dist.get_backend() != "gloo":
        return base

    def converted(self: Any, parameter: Any) -> None:
        super(base, self)._convert_to_deepspeed_param(parameter)
        parameter.comm = self.mics_comm_groups

    return type(base.__name__, (base,), {"_convert_to_deepspeed_param": converted})
