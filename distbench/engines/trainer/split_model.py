"""Models split by transformers whose steps its Trainer takes, in the worker."""

from __future__ import annotations

from distbench.core.errors import Mismatch
from distbench.engines._accelerate import forget_accelerator
from distbench.engines._split_model import (
    AnyDeviceParallelism,
    SplitModelEngine,
    group_by_mesh,
    split_model,
)
from distbench.engines.trainer.engine import TrainerSteps, start_loop
from distbench.strategies.base import RankContext
from distbench.strategies.torch_engine.optimizer import make_optimizer
from distbench.strategies.tp import TensorParallel


class TrainerTpEngine(TrainerSteps, SplitModelEngine):
    """A split model that the Trainer prepares and updates."""


def build_tp(strategy: TensorParallel, context: RankContext) -> TrainerTpEngine:
    """Engine of this rank.

    Raises:
        Mismatch: the Trainer wraps the model, or is on other devices than the ranks.
        UnsupportedCase: the Trainer can't keep a setting of the model.
    """
    forget_accelerator()
    module, layers = split_model(context)
    made = group_by_mesh(make_optimizer(module, layers, context.case.optimizer))
    parallel = {"parallelism_config": AnyDeviceParallelism(tp_size=context.world_size)}
    loop = start_loop(context, module.model, made, parallel)
    if loop.trainer.model_wrapped is not module.model:
        found = type(loop.trainer.model_wrapped).__name__
        raise Mismatch(f"trainer: expected the split model itself, found it in {found}")
    return TrainerTpEngine(context, module, layers, loop, strategy)
