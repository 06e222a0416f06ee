"""Whether a training in fp64 fits where this rank is, known before it is tried."""

import psutil
import torch
import torch.distributed as dist

from distbench.strategies.base import Setting
from distbench.system import cgroup_memory
from distbench.workloads import weights

# bytes an element: parameters, gradients and two moments in fp64, which ranks share
_SHARED = 4 * 8
# and on rank 0 what moves are told by: the start in fp64, and squares and doubts in fp32
_OF_RANK_0 = 8 + 2 * 4


def lacking_for_fp64(setting: Setting) -> str:
    """Why the states of a training in fp64 don't fit; empty: they do. A collective call.

    Activations are not counted, so one that just fits may still run out of memory.
    """
    elements = sum(parameter.numel() for parameter in weights.skeleton(setting.workload).parameters())
    needed = elements * (_SHARED / setting.world_size + (_OF_RANK_0 if setting.rank == 0 else 0))
    free = _free(setting)
    reasons: list[str] = [""] * setting.world_size
    text = (
        f"its states take {needed / 2**30:.3g} GiB on rank {setting.rank}, where {free / 2**30:.3g} are free"
    )
    dist.all_gather_object(reasons, text if needed > free else "")
    return next(filter(None, reasons), "")


def _free(setting: Setting) -> float:
    """Bytes that are free for this rank."""
    if setting.device.type == "cuda":
        return float(torch.cuda.mem_get_info(setting.device)[0])
    nodes = setting.nodes or [0] * setting.world_size
    free, account = psutil.virtual_memory().available, cgroup_memory.read_cgroup_memory()
    if account and account.free is not None:
        # in a container: what the kernel still gives, whatever the machine has
        free = min(free, account.free)
    return float(free) / list(nodes).count(nodes[setting.rank])
