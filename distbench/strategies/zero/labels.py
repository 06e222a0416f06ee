"""Labels of ZeRO's cases, with the options that matter. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distbench.strategies.zero import Zero


def zero_label(strategy: Zero) -> str:
    """Label of *strategy*."""
    name = f"zero{strategy.stage}"
    if strategy.model_parallelism.ranks > 1:
        name += f"+{strategy.model_parallelism.dimension}{strategy.model_parallelism.ranks}"
    if "none" not in (strategy.offload_optimizer, strategy.offload_parameters):
        name += f"+offload-all{_place_label(strategy.offload_parameters)}"
    elif strategy.offload_parameters != "none":
        name += f"+offload-params{_place_label(strategy.offload_parameters)}"
    elif strategy.offload_optimizer != "none":
        name += f"+offload{_place_label(strategy.offload_optimizer)}"
    # the reverse, stage 3 without it, has no name of its own: earlier versions call that zero3
    if strategy.overlap_comm and strategy.stage != 3:
        name += "+overlap"
    if strategy.hpz_partition_size > 1:
        name += f"+hpz{strategy.hpz_partition_size}"
    if strategy.mics_shard_size > 1:
        name += f"+mics{strategy.mics_shard_size}"
    if strategy.grad_accum_dtype != "fp32":
        name += f"+{strategy.grad_accum_dtype}-grads"
    return name if strategy.optimizer_kernel == "torch" else f"{name}+ds-adam"


def _place_label(place: str) -> str:
    return "" if place == "cpu" else f"-{place}"
