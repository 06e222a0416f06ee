"""The worker's side of ``zero`` with states on a disk: what is looked at before, and read back afterwards."""

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

from distbench.core.case import BYTES
from distbench.strategies.base import Refused, Setting
from distbench.strategies.engine import FullState
from distbench.strategies.torch_engine import reading
from distbench.strategies.zero import Zero, checkpoint, disk, gradients, masters, settings
from distbench.strategies.zero.config import Elements, configuration, for_model
from distbench.strategies.zero.engine import ZeroEngine, elements, initialized
from distbench.strategies.zero.memory import book
from distbench.workloads import weights

_NO_RESUMING = (
    "DeepSpeed (0.19.8) can't resume offload to NVMe from its own shards: it restores neither moments nor "
    "the count of steps nor tensors of less than 1 MiB, and fails where parameters alone are there"
)
_ASKED_TWICE = "already assigned swap buffer"
"""In DeepSpeed's error where what it reads ahead comes twice, in the forward and in the backward pass."""
_STEPS = "step"
"""Key of the updates that torch's optimizers have counted, among the moments of a tensor."""
_GROWING = 2
"""Updates before which a part of the files is new: later ones overwrite what is there."""


class NvmeEngine(ZeroEngine):
    """DeepSpeed's engine whose states lie in files of *folder*."""

    def __init__(self, setting: Setting, engine: Any, layers: list[nn.Module], folder: Path) -> None:
        super().__init__(setting, engine, layers)
        self._folder, self._updates = folder, 0
        self._places: dict[str, str] = settings.describe(engine)["offload"]

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with disk.told_if_full(self._folder), _told_if_asked_twice():
            return super().forward_backward(micro_batch)

    def step(self) -> None:
        # the first backward pass has made the files of gradients, and the first update those of moments
        if self._updates < _GROWING:
            disk.check_room(self._folder)
            self._updates += 1
        with disk.told_if_full(self._folder):
            super().step()

    def grad_norm(self) -> float:
        if self._places["optimizer"] != "nvme":
            return super().grad_norm()
        # read parameter by parameter, each would bring all states of its part from the disk
        squares = torch.stack([reading.sum_of_squares(part) for part in _gradient_parts(self._engine)]).sum()
        dist.all_reduce(squares, group=self._engine.data_parallel_group)
        return math.sqrt(squares) / gradients.loss_scale(self._engine)

    def effective(self) -> dict[str, Any]:
        found = disk.lying(self._folder, self._setting.rank)
        # what was asked for is what the settings say; this is what the disk says
        places = {
            what: place if place != "nvme" or found[what] else "cpu" for what, place in self._places.items()
        }
        return {**super().effective(), "offload": places, "on_disk": found}

    def load(self, folder: Path) -> None:
        raise NotImplementedError(_NO_RESUMING)

    def _spread(self, state: FullState) -> None:
        with disk.told_if_full(self._folder):
            _spread(self._engine, state)

    def memory(self) -> dict[str, int]:
        ledger = reading.Ledger(self._setting.device)
        # DeepSpeed's own allocator makes them, which torch's books don't know of
        ledger.apart("buffers", list(_buffers(self._engine)))
        book(ledger, self._engine, masters.updated(self._engine))
        return ledger.bytes

    def close(self) -> None:
        super().close()
        for own in self._folder.glob(f"zero_stage_3/*/rank{self._setting.rank}"):
            shutil.rmtree(own, ignore_errors=True)


def build_on_disk(strategy: Zero, setting: Setting) -> NvmeEngine:
    """Engine of this rank, with states in files below ``nvme_path``.

    Raises:
        DiskFullError: the disk has no room for them.
        Refused: nothing of the model is large enough to be moved there, or this machine lets nobody do so.
    """
    case, size = setting.case, elements(setting.workload)
    _check_size(strategy, setting, size)
    disk.check_locks(disk.locked(strategy, case, size))
    here = [setting.nodes[setting.rank] == node for node in setting.nodes].count(True) or setting.world_size
    folder = disk.open_folder(strategy.nvme_path, here * disk.kept(strategy, case, size.model))
    # a rank may take room only when all have seen that there is enough
    dist.barrier()
    sizes = for_model(strategy, size) | disk.sizes(strategy, size, setting.world_size)
    config = disk.placed(configuration(strategy, case, sizes), folder)
    with disk.told_if_full(folder):
        return NvmeEngine(setting, *initialized(strategy, setting, config), folder)


def _check_size(strategy: Zero, setting: Setting, size: Elements) -> None:
    """Raise Refused if DeepSpeed would keep all in memory that is to go to the disk."""
    precision, ranks = setting.case.precision, setting.world_size
    largest = {
        "offload_optimizer": size.model * BYTES[precision.master],
        "offload_parameters": size.parameter * BYTES[precision.compute],
    }
    for option, whole in largest.items():
        if getattr(strategy, option) == "nvme" and -(-whole // ranks) < disk.LEAST:
            raise Refused(
                f"{option} = nvme: DeepSpeed keeps tensors of less than 1 MiB in memory, and on {ranks} "
                f"ranks the largest has {-(-whole // ranks):,} bytes; use a larger model"
            )


def _spread(engine: Any, state: FullState) -> None:
    """Put *state* in its places, in memory or on the disk."""
    named = {parameter: weights.plain_name(name) for name, parameter in engine.module.named_parameters()}
    example = next(iter(state.optimizer.values()), {})
    for part, master in enumerate(engine.optimizer.fp32_partitioned_groups_flat):
        with _at_hand(engine.optimizer, part):
            kept = engine.basic_optimizer.state[master]
            kept.update({name: torch.zeros_like(master) for name in example if name != _STEPS})
            if _STEPS in example:
                kept[_STEPS] = checkpoint.counted(engine.basic_optimizer, example[_STEPS], master.device)
            for parameter in engine.optimizer.fp16_groups[part]:
                _put(engine.optimizer, parameter, master, state.parameters[named[parameter]])
                for name, moment in state.optimizer.get(named[parameter], {}).items():
                    if name != _STEPS:
                        _put(engine.optimizer, parameter, kept[name], moment)
    for parameter, name in named.items():
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            parameter.data.copy_(state.parameters[name])
    for name, buffer in engine.module.named_buffers():
        buffer.copy_(state.buffers[weights.plain_name(name)])


@contextmanager
def _told_if_asked_twice() -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        if _ASKED_TWICE not in str(error):
            raise
        raise Refused(
            "DeepSpeed (0.19.8) fails if it prefetches a parameter of this model from NVMe for a forward and "
            f"a backward pass at once ({error}); set prefetch_bucket_size: 0"
        ) from error


@contextmanager
def _at_hand(optimizer: Any, part: int) -> Iterator[None]:
    """Have the states of *part* in memory, and write what becomes of them, new ones among them."""
    is_on_disk = optimizer._swappable_optimizer_subgroup(part)
    if is_on_disk:
        optimizer._optimizer_states_and_gradient_swap_in(part)
    yield
    if is_on_disk:
        optimizer._optimizer_states_and_gradient_swap_out(part)


def _put(optimizer: Any, parameter: Any, flat: torch.Tensor, whole: torch.Tensor) -> None:
    """Put this rank's shard of *whole*, which is of *parameter*, into its place in *flat*.

    DeepSpeed's own call (safe_set_local_fp32_param) takes the size of a shard that is on the disk for 1, and
    fills all of it with its first element (0.19.8).
    """
    _, start, size = optimizer.grad_position[optimizer.get_param_id(parameter)]
    begin = size * dist.get_rank(group=parameter.ds_process_group)
    own = whole.flatten()[begin : begin + size]
    flat.data[start : start + own.numel()] = own


def _gradient_parts(engine: Any) -> Iterator[torch.Tensor]:
    """Gradients of this rank's shard, with the loss scale in them, part by part as the disk gives them."""
    optimizer = engine.optimizer
    for part, master in enumerate(optimizer.fp32_partitioned_groups_flat):
        is_on_disk = optimizer._swappable_optimizer_subgroup(part)
        if is_on_disk:
            optimizer._optimizer_states_and_gradient_swap_in(part)
        yield master.grad
        if is_on_disk:
            optimizer._release_swap_buffers(part)


def _buffers(engine: Any) -> Iterator[torch.Tensor]:
    """Memory that DeepSpeed has locked to read from the disk and write to it."""
    if swapper := getattr(engine.optimizer, "optimizer_swapper", None):
        yield from swapper.swap_buffer_manager.all_buffers
    swappers = {id(s): s for p in engine.module.parameters() if (s := getattr(p, "nvme_swapper", None))}
    for swapper in swappers.values():
        yield swapper.buffers
        if swapper.partitioned_swap_buffer is not None:
            yield swapper.partitioned_swap_buffer
