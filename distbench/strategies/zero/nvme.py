"""Engine of ``zero`` with states on a disk: checks before training, and states read back after it."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

from distbench.core.dtypes import DTYPE_BYTES
from distbench.strategies.base import RankContext, UnsupportedCase
from distbench.strategies.engine import TrainingState
from distbench.strategies.torch_engine import readback
from distbench.strategies.zero import Zero, checkpoint, disk, live_state
from distbench.strategies.zero.build import create_engine, model_sizes
from distbench.strategies.zero.config import ModelSizes, configuration, sizes_for_model
from distbench.strategies.zero.engine import ZeroEngine
from distbench.strategies.zero.readback import count_engine_storages, engine_settings
from distbench.workloads import weights

_CANNOT_RESUME = (
    "DeepSpeed (0.19.8) can't resume offload to NVMe from its own shards: it does not restore moments, "
    "step counts or tensors of less than 1 MiB, and fails if only parameters are offloaded"
)
_DOUBLE_PREFETCH = "already assigned swap buffer"
"""Text in DeepSpeed's error if a prefetch is repeated, in the forward and in the backward pass."""
_STEP_KEY = "step"
"""Key of the step counter of torch's optimizers, among the moments of a tensor."""
_GROWING_UPDATES = 2
"""Number of updates before which some of the files are new: later ones overwrite existing data."""


class NvmeEngine(ZeroEngine):
    """DeepSpeed's engine with its states in files below *folder*."""

    def __init__(self, context: RankContext, engine: Any, layers: list[nn.Module], folder: Path) -> None:
        super().__init__(context, engine, layers)
        self._folder, self._updates = folder, 0
        self._places: dict[str, str] = engine_settings(engine)["offload"]

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with disk.report_full_disk(self._folder), _report_double_prefetch():
            return super().forward_backward(micro_batch)

    def step(self) -> None:
        # the first backward pass creates the files of gradients, and the first update those of moments
        if self._updates < _GROWING_UPDATES:
            disk.check_free_space(self._folder)
            self._updates += 1
        with disk.report_full_disk(self._folder):
            super().step()

    def grad_norm(self) -> float:
        if self._places["optimizer"] != "nvme":
            return super().grad_norm()
        # reading parameter by parameter would load all states of the part from the disk for each
        squares = torch.stack(
            [readback.sum_of_squares(part) for part in _gradient_chunks(self._engine)]
        ).sum()
        dist.all_reduce(squares, group=self._engine.data_parallel_group)
        return math.sqrt(squares) / live_state.loss_scale(self._engine)

    def effective_settings(self) -> dict[str, Any]:
        found = disk.bytes_on_disk(self._folder, self._context.rank)
        # the settings report the request; this reports the content of the disk
        places = {
            what: place if place != "nvme" or found[what] else "cpu" for what, place in self._places.items()
        }
        return {**super().effective_settings(), "offload": places, "on_disk": found}

    def load_sharded(self, folder: Path) -> None:
        raise NotImplementedError(_CANNOT_RESUME)

    def _scatter_state(self, state: TrainingState) -> None:
        with disk.report_full_disk(self._folder):
            _scatter_to_disk(self._engine, state)

    def memory_by_kind(self) -> dict[str, int]:
        ledger = readback.StorageCounter(self._context.device)
        # DeepSpeed's own allocator creates them, which torch's accounting does not cover
        ledger.count_external("buffers", list(_locked_buffers(self._engine)))
        count_engine_storages(ledger, self._engine, live_state.updated_tensors(self._engine))
        return ledger.bytes

    def close(self) -> None:
        super().close()
        for own in self._folder.glob(f"zero_stage_3/*/rank{self._context.rank}"):
            shutil.rmtree(own, ignore_errors=True)


def build_nvme(strategy: Zero, context: RankContext) -> NvmeEngine:
    """Engine of this rank, with states in files below ``nvme_path``.

    Raises:
        OffloadDiskFullError: the disk has too little space for them.
        UnsupportedCase: no tensor of the model is large enough to be offloaded, or this machine does not
            permit it.
    """
    case, size = context.case, model_sizes(context.workload)
    _check_size(strategy, context, size)
    disk.check_memlock(disk.locked_bytes(strategy, case, size))
    here = [context.node_of_rank[context.rank] == node for node in context.node_of_rank].count(
        True
    ) or context.world_size
    folder = disk.create_folder(strategy.nvme_path, here * disk.disk_bytes(strategy, case, size.total))
    # a rank may use disk space only after all ranks have checked that there is enough
    dist.barrier()
    sizes = sizes_for_model(strategy, size) | disk.sizes(strategy, size, context.world_size)
    config = disk.with_folder(configuration(strategy, case, sizes), folder)
    with disk.report_full_disk(folder):
        return NvmeEngine(context, *create_engine(strategy, context, config), folder)


def _check_size(strategy: Zero, context: RankContext, size: ModelSizes) -> None:
    """Raise UnsupportedCase if all tensors are too small for DeepSpeed to offload them."""
    precision, ranks = context.case.precision, context.world_size
    largest = {
        "offload_optimizer": size.total * DTYPE_BYTES[precision.master],
        "offload_parameters": size.largest_parameter * DTYPE_BYTES[precision.compute],
    }
    for option, whole in largest.items():
        if getattr(strategy, option) == "nvme" and -(-whole // ranks) < disk.MIN_SWAP_BYTES:
            raise UnsupportedCase(
                f"{option} = nvme: DeepSpeed keeps tensors of less than 1 MiB in memory, and on {ranks} "
                f"ranks the largest tensor has {-(-whole // ranks):,} bytes; use a larger model"
            )


def _scatter_to_disk(engine: Any, state: TrainingState) -> None:
    """Load *state* into memory or onto the disk."""
    named = {parameter: weights.plain_name(name) for name, parameter in engine.module.named_parameters()}
    example = next(iter(state.optimizer.values()), {})
    for part, master in enumerate(engine.optimizer.fp32_partitioned_groups_flat):
        with _swapped_in(engine.optimizer, part):
            kept = engine.basic_optimizer.state[master]
            kept.update({name: torch.zeros_like(master) for name in example if name != _STEP_KEY})
            if _STEP_KEY in example:
                kept[_STEP_KEY] = checkpoint.step_value(
                    engine.basic_optimizer, example[_STEP_KEY], master.device
                )
            for parameter in engine.optimizer.fp16_groups[part]:
                _write_shard(engine.optimizer, parameter, master, state.parameters[named[parameter]])
                for name, moment in state.optimizer.get(named[parameter], {}).items():
                    if name != _STEP_KEY:
                        _write_shard(engine.optimizer, parameter, kept[name], moment)
    for parameter, name in named.items():
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            parameter.data.copy_(state.parameters[name])
    for name, buffer in engine.module.named_buffers():
        buffer.copy_(state.buffers[weights.plain_name(name)])


@contextmanager
def _report_double_prefetch() -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        if _DOUBLE_PREFETCH not in str(error):
            raise
        raise UnsupportedCase(
            "DeepSpeed (0.19.8) can't prefetch the same parameter from NVMe for a forward and a "
            f"backward pass at once ({error}); set prefetch_bucket_size: 0"
        ) from error


@contextmanager
def _swapped_in(optimizer: Any, part: int) -> Iterator[None]:
    """Load the states of *part* into memory, and write them back, including new ones."""
    is_on_disk = optimizer._swappable_optimizer_subgroup(part)
    if is_on_disk:
        optimizer._optimizer_states_and_gradient_swap_in(part)
    yield
    if is_on_disk:
        optimizer._optimizer_states_and_gradient_swap_out(part)


def _write_shard(optimizer: Any, parameter: Any, flat: torch.Tensor, whole: torch.Tensor) -> None:
    """Put this rank's shard of *whole*, the full tensor of *parameter*, into its position in *flat*.

    DeepSpeed's own call (safe_set_local_fp32_param) takes the size of a shard that is on the disk for 1, and
    fills all of it with its first element (0.19.8).
    """
    _, start, size = optimizer.grad_position[optimizer.get_param_id(parameter)]
    begin = size * dist.get_rank(group=parameter.ds_process_group)
    own = whole.flatten()[begin : begin + size]
    flat.data[start : start + own.numel()] = own


def _gradient_chunks(engine: Any) -> Iterator[torch.Tensor]:
    """Gradients of this rank's shard, with the loss scale in them, part by part as read from the disk."""
    optimizer = engine.optimizer
    for part, master in enumerate(optimizer.fp32_partitioned_groups_flat):
        is_on_disk = optimizer._swappable_optimizer_subgroup(part)
        if is_on_disk:
            optimizer._optimizer_states_and_gradient_swap_in(part)
        yield master.grad
        if is_on_disk:
            optimizer._release_swap_buffers(part)


def _locked_buffers(engine: Any) -> Iterator[torch.Tensor]:
    """Memory that DeepSpeed has locked to read from the disk and write to it."""
    if swapper := getattr(engine.optimizer, "optimizer_swapper", None):
        yield from swapper.swap_buffer_manager.all_buffers
    swappers = {id(s): s for p in engine.module.parameters() if (s := getattr(p, "nvme_swapper", None))}
    for swapper in swappers.values():
        yield swapper.buffers
        if swapper.partitioned_swap_buffer is not None:
            yield swapper.partitioned_swap_buffer
