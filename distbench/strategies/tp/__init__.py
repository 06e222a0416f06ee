"""``tp``: torch's tensor parallelism, each layer split across all ranks (Megatron-LM, arXiv:1909.08053)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.core.machine import Machine
from distbench.strategies.base import TORCH_CHECKPOINT, RankContext, Strategy
from distbench.strategies.cards import Card, built_in_card
from distbench.strategies.description import (
    GRANULARITY,
    SHARDING,
    SIMPLICITY_OF_MODEL_PARALLELISM,
    ExpectedCollective,
    SettingMeaning,
    TracedStep,
    strategy_settings,
)
from distbench.strategies.engine import Engine
from distbench.strategies.requirements import optimizer_problem
from distbench.strategies.theory.data_parallelism import REPLICATED
from distbench.strategies.theory.tensor_parallelism import TensorParallelism


@dataclass(frozen=True)
class TensorParallel(Strategy):
    """Tensor parallelism: every layer is split across all ranks, which process the same samples."""

    engine_class = "TensorParallelEngine"
    checkpoint_format = TORCH_CHECKPOINT
    early_imports = ("distbench.strategies.tp.engine",)
    settings: ClassVar[Mapping[str, SettingMeaning]] = {
        **strategy_settings(SHARDING, "mesh", "split_tensors"),
        **strategy_settings(GRANULARITY, "sequence_parallel", "loss_parallel"),
    }

    sequence_parallel: bool = False
    """Also split the activations between layers, by position: all-gathers and reduce-scatters with the same
    bytes replace the all-reduces, and activations take less memory (Korthikanti et al., arXiv:2205.05198)."""
    loss_parallel: bool = False
    """Compute the loss from logits that stay split by class, instead of gathering them."""

    @property
    def label(self) -> str:
        return "+".join(["tp", *self.tensor_parallelism(1).label_parts])

    @property
    def simplicity(self) -> int:
        # it changes the model's layers, and the assignment of samples to ranks
        return SIMPLICITY_OF_MODEL_PARALLELISM + 10 + self.sequence_parallel + self.loss_parallel

    @property
    def card(self) -> Card:
        return built_in_card("tp-sequence_parallel" if self.sequence_parallel else "tp")

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return cls(), cls(sequence_parallel=True)

    def data_parallel_size(self, ranks: int) -> int:
        return 1

    def mesh_sizes(self, ranks: int) -> dict[str, int]:
        return {"tp": ranks}

    def problem(self, case: Case, machine: Machine) -> str | None:
        return self.tensor_parallelism(case.world_size).problem(case) or optimizer_problem(
            case, "rows", self.label
        )

    def required_settings(self, case: Case) -> dict[str, Any]:
        return self.tensor_parallelism(case.world_size).required_settings

    def traffic(self, case: Case, parameters: int) -> list[ExpectedCollective]:
        norms = DTYPE_BYTES[case.precision.master]
        return self.tensor_parallelism(case.world_size).traffic(case, case.batch.global_batch_size, norms)

    def model_states(self, case: Case, parameters: int) -> dict[str, float]:
        mine = self.tensor_parallelism(case.world_size).parameters_per_rank(case, parameters)
        return REPLICATED.model_states(case, mine)

    def traced_step(self, case: Case) -> TracedStep:
        return TracedStep(case)

    def build(self, context: RankContext) -> Engine:
        from distbench.strategies.tp.engine import build_tp

        return build_tp(self, context)

    def tensor_parallelism(self, ranks: int) -> TensorParallelism:
        """Tensor parallelism of the layers over *ranks* ranks."""
        return TensorParallelism(ranks, self.sequence_parallel, self.loss_parallel)
