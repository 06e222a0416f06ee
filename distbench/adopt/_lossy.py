"""Script lines in plain torch that send less than the full gradients."""

from __future__ import annotations

from distbench.adopt._python import lines
from distbench.strategies.ddp import DistributedDataParallel

_HOOKS = "from torch.distributed.algorithms.ddp_comm_hooks"


def imports(ddp: DistributedDataParallel) -> str:
    """Imports for ``register`` and ``average``; empty if none are needed."""
    if ddp.powersgd_rank:
        return f"{_HOOKS}.powerSGD_hook import PowerSGDState, powerSGD_hook"
    if ddp.local_sgd_period:
        return lines(
            f"{_HOOKS}.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook",
            "from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager",
            "from torch.distributed.optim import PostLocalSGDOptimizer",
        )
    return ""


def register(ddp: DistributedDataParallel) -> str:
    """Statements that register the hook of *ddp* with ``model``; empty if it has none."""
    if ddp.powersgd_rank:
        return lines(
            "state = PowerSGDState(",
            "    None,",
            f"    matrix_approximation_rank={ddp.powersgd_rank!r},",
            f"    start_powerSGD_iter={ddp.powersgd_start!r},  # torch's advice: a tenth of the training",
            f"    min_compression_rate={ddp.min_compression_rate!r},",
            ")",
            "model.register_comm_hook(state, powerSGD_hook)",
        )
    if ddp.local_sgd_period:
        return lines(
            "alone, _ = dist.new_subgroups(1)  # no reduction between two averages",
            f"state = PostLocalSGDState(None, alone, {ddp.local_sgd_start!r})",
            "model.register_comm_hook(state, post_localSGD_hook)",
        )
    return ""


def average(ddp: DistributedDataParallel) -> str:
    """Statements that make ``optimizer`` average the model copies; empty if there is nothing to average."""
    if not ddp.local_sgd_period:
        return ""
    return lines(
        "averager = PeriodicModelAverager(",
        f"    period={ddp.local_sgd_period!r}, warmup_steps={ddp.local_sgd_start!r}",
        ")",
        "optimizer = PostLocalSGDOptimizer(optimizer, averager)",
    )
