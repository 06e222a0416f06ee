"""The options of ``fsdp``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from distbench.strategies.base import Setting

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class FsdpOptions:
    """Fields of the plug-in, which both engines read."""

    version: Literal[1, 2] = 2
    """2: ``fully_shard`` (FSDP2). 1: ``FullyShardedDataParallel``, for those who still run it."""
    sharding: Literal["full", "grad_op", "hybrid"] = "full"
    """full: parameters are gathered again for the backward pass (ZeRO-3). grad_op: they stay
    gathered from forward to backward (ZeRO-2). hybrid: sharded inside groups, replicated across."""
    replicas: int = 2
    """How many copies of the model a hybrid shard keeps; world size / replicas ranks share one."""
    cpu_offload: bool = False
    """Keep parameters, gradients and optimizer state on the CPU."""
    reshard_root: bool = False
    """Shard the root's parameters (embedding, head) again after forward too; they are needed
    first in the backward pass, so torch keeps them by default. FSDP2 only."""
    reduce_each_micro_batch: bool = True
    """Reduce-scatter after every micro-batch; false: accumulate whole gradients in memory and
    reduce once a step."""

    def mesh(self, world_size: int) -> dict[str, int]:
        """Ranks of the device mesh by dimension: copies of the model if hybrid, and those that share one."""
        if self.sharding == "hybrid":
            return {"replicate": self.replicas, "shard": world_size // self.replicas}
        return {"shard": world_size}


def device_mesh(options: FsdpOptions, setting: Setting) -> DeviceMesh:
    """Mesh of the ranks as *options* divide them. A collective call."""
    from torch.distributed.device_mesh import init_device_mesh

    sizes = options.mesh(setting.world_size)
    return init_device_mesh(setting.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
