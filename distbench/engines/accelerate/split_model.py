"""Models split by transformers whose steps Accelerate takes, in the worker."""

from __future__ import annotations

from distbench.engines._accelerate import forget_accelerator
from distbench.engines._split_model import AnyDeviceParallelism, SplitModelEngine, split_model
from distbench.engines.accelerate.engine import AcceleratorSteps, make_accelerator
from distbench.strategies.base import RankContext
from distbench.strategies.tp import TensorParallel


class AccelerateTpEngine(AcceleratorSteps, SplitModelEngine):
    """A split model that Accelerate prepares and updates."""


def build_tp(strategy: TensorParallel, context: RankContext) -> AccelerateTpEngine:
    """Engine of this rank.

    Raises:
        Mismatch: Accelerate or transformers is on other devices than the ranks.
    """
    forget_accelerator()
    module, layers = split_model(context)
    accelerator = make_accelerator(
        context,
        cpu=context.device.type == "cpu",
        parallelism_config=AnyDeviceParallelism(tp_size=context.world_size),
    )
    module.model = accelerator.prepare_model(module.model)
    engine = AccelerateTpEngine(context, module, layers, strategy)
    engine.use_accelerator(accelerator)
    return engine
