"""``trainer``: Hugging Face transformers' Trainer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distbench.core.case import Case
from distbench.engines._limits import split_releases, wrapped_problem
from distbench.engines._split_theory import split_traffic
from distbench.engines.base import Framework
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.description import ExpectedCollective
from distbench.strategies.engine import Engine
from distbench.strategies.fsdp import FullyShardedDataParallel
from distbench.strategies.tp import TensorParallel


@dataclass(frozen=True)
class TransformersTrainer(Framework):
    """Hugging Face transformers' Trainer: its loop runs, with its callbacks, norms and schedule."""

    # its loop pauses after each micro-batch, in a greenlet
    packages = ("transformers", "accelerate", "greenlet")
    extra = "trainer"
    strategies = ("ddp", "tp", "zero")
    imports = ("transformers.trainer",)

    def problem(self, case: Case, strategy: Strategy) -> str | None:
        if isinstance(strategy, FullyShardedDataParallel):
            return (
                "engine trainer does not offer fsdp: on a CPU the Trainer would silently run DDP instead, "
                "and on GPUs it refuses the optimizer of the case; use ddp or zero, or engine: native or "
                "fabric"
            )
        if isinstance(strategy, DistributedDataParallel) and strategy.gradient_as_bucket_view:
            return (
                "engine trainer can't set gradient_as_bucket_view, for which the Trainer has no argument; "
                "use gradient_as_bucket_view: false, or engine: native, accelerate or fabric"
            )
        return wrapped_problem(case, strategy, self.strategies)

    def additional_traffic(self, case: Case, strategy: Strategy) -> Sequence[ExpectedCollective]:
        return split_traffic(case, strategy, averages_norms=True)

    def minimum_releases(self, strategy: Strategy) -> Mapping[str, str]:
        return split_releases(strategy)

    def build(self, strategy: Strategy, context: RankContext) -> Engine:
        if isinstance(strategy, TensorParallel):
            # its imports need newer packages than the others
            from distbench.engines.trainer.split_model import build_tp

            return build_tp(strategy, context)
        from distbench.engines.trainer.engine import build_trainer

        return build_trainer(strategy, context)
