"""``ddp``: torch.nn.parallel.DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from distbench import optimizers
from distbench.bounds import Positive
from distbench.case import BYTES, Case
from distbench.env import Machine
from distbench.strategies._model_states import Replicated, zero_table
from distbench.strategies.base import Engine, Setting, Strategy
from distbench.strategies.ddp.card import PLAIN, SHARDED_OPTIMIZER
from distbench.strategies.description import PORTIONS, SHARDING, TIMING, Card, Deviation, Meaning, points

# an id of a case holds it, so that "unset" can't be another value
TORCH_BUCKET_MB = 25.0


@dataclass(frozen=True)
class DistributedDataParallel(Replicated):
    """DistributedDataParallel: a whole copy of the model on each rank, gradients all-reduced in buckets."""

    engine = "DistributedDataParallel"
    early = ("distbench.strategies.ddp.engine",)
    settings: ClassVar[Mapping[str, Meaning]] = {
        **points(PORTIONS, "bucket_bytes_cap", "smaller_first_bucket"),
        **points(TIMING, "gradient_as_bucket_view", "static_graph"),
        **points(SHARDING, "sharded_optimizer", "updated_tensors", "parameters_as_bucket_view"),
    }

    bucket_cap_mb: Positive = TORCH_BUCKET_MB
    """Size in MiB, above 0, of the buckets in which gradients are all-reduced. 25, torch's own, leaves them
    to torch, which makes the first smaller (1 MiB), to begin earlier; any other size is that of all."""
    gradient_as_bucket_view: bool = False
    """Let gradients be views into the buckets: saves one copy of the gradients."""
    static_graph: bool = False
    """Promise that the same parameters are used in every step."""
    sharded_optimizer: bool = field(default=False, metadata={"since": 4})
    """Let each rank keep the optimizer state of some of the tensors, update those, and broadcast them:
    torch's ZeroRedundancyOptimizer, stage 1 of ZeRO."""

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return cls(), cls(sharded_optimizer=True)

    @property
    def simplicity(self) -> int:
        # before stage 1 of DeepSpeed, which brings another framework
        return 15 if self.sharded_optimizer else 10

    @property
    def card(self) -> Card:
        return SHARDED_OPTIMIZER if self.sharded_optimizer else PLAIN

    @property
    def label(self) -> str:
        changed = [f"{self.bucket_cap_mb:g}mb"] if self.bucket_cap_asked else []
        changed += ["view"] if self.gradient_as_bucket_view else []
        changed += ["static"] if self.static_graph else []
        changed += ["zero1"] if self.sharded_optimizer else []
        return "+".join(["ddp", *changed])

    @property
    def bucket_cap_asked(self) -> float | None:
        """Size of the buckets in MiB as DDP is asked for it; None: torch's own, with a smaller first one."""
        return None if self.bucket_cap_mb == TORCH_BUCKET_MB else self.bucket_cap_mb

    def problem(self, case: Case, machine: Machine) -> str | None:
        if case.precision.reduce not in (case.precision.master, "bf16", "fp16"):
            return (
                f"DDP reduces gradients in the parameters' dtype or in 16 bits: precision.reduce = "
                f"{case.precision.reduce} with precision.master = {case.precision.master}"
            )
        in_bf16 = case.precision.reduce == "bf16" != case.precision.master
        if case.device == "cpu" and in_bf16:
            # torch 2.13: TypeError from register_comm_hook, with gloo too
            return "precision.reduce = bf16: DDP's communication hook for bf16 needs CUDA and NCCL"
        if self.static_graph and case.batch.gradient_accumulation_steps > 1:
            # seen with torch 2.13: expect_autograd_hooks_ INTERNAL ASSERT FAILED in reducer.cpp
            return (
                "DDP's static_graph does not work with gradient accumulation (no_sync): "
                f"gradient_accumulation_steps = {case.batch.gradient_accumulation_steps}"
            )
        kind, name = optimizers.kind_of(case.optimizer), f"optimizer.name = {case.optimizer.name}"
        if self.sharded_optimizer and kind.rest:
            return (
                f"{name} is two optimizers, and torch's ZeroRedundancyOptimizer shards one; use "
                "sharded_optimizer: false"
            )
        if self.sharded_optimizer and kind.is_compiled:
            return f"{name} is not offered with sharded_optimizer; use sharded_optimizer: false"
        return super().problem(case, machine)

    def collectives(self, case: Case, parameters: int) -> dict[str, float]:
        # Li et al. 2020 (arXiv 2006.15704): one all-reduce of the gradients, after the last micro-batch
        if case.world_size == 1:
            return {}
        reduced: dict[str, float] = {"all_reduce": parameters * BYTES[case.precision.reduce]}
        if self.sharded_optimizer:
            # every updated tensor from its rank to the others
            reduced["broadcast"] = parameters * BYTES[case.precision.master]
        return reduced

    def model_states(self, case: Case, parameters: int) -> dict[str, float]:
        shards = (1, 1, case.world_size if self.sharded_optimizer else 1)
        return zero_table(case, parameters, stored=case.precision.master, shards=shards)

    def expected(self, case: Case) -> dict[str, Any]:
        return {"sharded_optimizer": "ZeroRedundancyOptimizer"} if self.sharded_optimizer else {}

    @property
    def deviations(self) -> tuple[Deviation, ...]:
        uneven = Deviation("states", "whole tensors are given to ranks, so one has more than another")
        return (uneven,) if self.sharded_optimizer else ()

    def build(self, setting: Setting) -> Engine:
        from distbench.strategies.ddp.engine import build_ddp

        if not self.sharded_optimizer:
            return build_ddp(self, setting)
        from distbench.strategies.ddp.sharded import ShardedOptimizerEngine

        return build_ddp(self, setting, ShardedOptimizerEngine)
