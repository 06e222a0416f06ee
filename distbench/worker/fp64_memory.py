"""Check that an fp64 training fits into memory before it is tried."""

import psutil
import torch
import torch.distributed as dist

from distbench.strategies.base import RankContext
from distbench.system import cgroup_memory
from distbench.workloads import weights

# bytes per element: parameters, gradients and two moments in fp64, which are sharded over ranks
_SHARDED_BYTES = 4 * 8
# on rank 0 also the state of the weighted updates: start in fp64, squares and noise ratios in fp32
_RANK_0_BYTES = 8 + 2 * 4


def fp64_memory_problem(context: RankContext) -> str:
    """Reason why the states of an fp64 training don't fit; empty: they do. A collective call.

    Activations are not counted, so a training that just fits may still run out of memory.
    """
    elements = sum(parameter.numel() for parameter in weights.meta_module(context.workload).parameters())
    needed = elements * (_SHARDED_BYTES / context.world_size + (_RANK_0_BYTES if context.rank == 0 else 0))
    free = _free_memory(context)
    reasons: list[str] = [""] * context.world_size
    text = (
        f"its states need {needed / 2**30:.3g} GiB on rank {context.rank}, and {free / 2**30:.3g} GiB "
        "are free"
    )
    dist.all_gather_object(reasons, text if needed > free else "")
    return next(filter(None, reasons), "")


def _free_memory(context: RankContext) -> float:
    """Bytes that are free for this rank."""
    if context.device.type == "cuda":
        return float(torch.cuda.mem_get_info(context.device)[0])
    nodes = context.node_of_rank or [0] * context.world_size
    free, account = psutil.virtual_memory().available, cgroup_memory.read_cgroup_memory()
    if account and account.free_bytes is not None:
        # in a container: the rest below its limit, whatever the machine has
        free = min(free, account.free_bytes)
    return float(free) / list(nodes).count(nodes[context.rank])
