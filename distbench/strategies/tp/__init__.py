"""``tp``: torch's tensor parallelism, each layer split across all ranks (Megatron-LM, arXiv:1909.08053)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from distbench.core.case import BYTES, Case
from distbench.core.machine import Machine
from distbench.strategies._model_states import state_problem, zero_table
from distbench.strategies._tensor_parallel import TensorParallelism
from distbench.strategies.base import TORCH_SHARDS, Setting, Strategy
from distbench.strategies.description import (
    PORTIONS,
    SHARDING,
    SPLITS_MODEL,
    Card,
    ExpectedCollective,
    Meaning,
    by_operation,
    points,
)
from distbench.strategies.engine import Engine
from distbench.strategies.tp.card import PLAIN, SEQUENCE


@dataclass(frozen=True)
class TensorParallel(Strategy):
    """Tensor parallelism: every layer is split across all ranks, which process the same samples."""

    engine = "TensorParallelEngine"
    shard_format = TORCH_SHARDS
    early = ("distbench.strategies.tp.engine",)
    settings: ClassVar[Mapping[str, Meaning]] = {
        **points(SHARDING, "mesh", "split_tensors"),
        **points(PORTIONS, "sequence_parallel", "loss_parallel"),
    }

    sequence_parallel: bool = False
    """Also split the activations between layers, by position: all-gathers and reduce-scatters with the same
    bytes replace the all-reduces, and activations take less memory (Korthikanti et al., arXiv:2205.05198)."""
    loss_parallel: bool = False
    """Compute the loss from logits that stay split by class, instead of gathering them."""

    @property
    def label(self) -> str:
        return "+".join(["tp", *self.over(1).suffixes])

    @property
    def simplicity(self) -> int:
        # it changes the model's layers, and which ranks process the same samples
        return SPLITS_MODEL + 10 + self.sequence_parallel + self.loss_parallel

    @property
    def card(self) -> Card:
        return SEQUENCE if self.sequence_parallel else PLAIN

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return cls(), cls(sequence_parallel=True)

    def data_ranks(self, ranks: int) -> int:
        return 1

    def dimensions(self, ranks: int) -> dict[str, int]:
        return {"tp": ranks}

    def problem(self, case: Case, machine: Machine) -> str | None:
        return self.over(case.world_size).problem(case) or state_problem(case, "rows", self.label)

    def expected(self, case: Case) -> dict[str, Any]:
        return self.over(case.world_size).expected

    def collectives(self, case: Case, parameters: int) -> dict[str, float]:
        return by_operation(self.collectives_by_dimension(case, parameters))

    def collectives_by_dimension(self, case: Case, parameters: int) -> list[ExpectedCollective]:
        norms = BYTES[case.precision.master]
        return self.over(case.world_size).collectives(case, case.batch.global_batch_size, norms)

    def model_states(self, case: Case, parameters: int) -> dict[str, float]:
        mine = self.over(case.world_size).parameters(case, parameters)
        return zero_table(case, mine, stored=case.precision.master)

    def build(self, setting: Setting) -> Engine:
        from distbench.strategies.tp.engine import build_tp

        return build_tp(self, setting)

    def over(self, devices: int) -> TensorParallelism:
        """How that many *devices* cut layers."""
        return TensorParallelism(devices, self.sequence_parallel, self.loss_parallel)
