"""``ddp``: torch.nn.parallel.DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, ClassVar

from distbench import optimizers
from distbench.core.bounds import Bound, Count, Positive
from distbench.core.case import Case, PluginChoice
from distbench.core.dtypes import DTYPE_BYTES
from distbench.core.machine import Machine
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.cards import Card, built_in_card
from distbench.strategies.ddp import lossy
from distbench.strategies.description import (
    GRANULARITY,
    OVERLAP,
    SHARDING,
    UNKNOWN_CALLS,
    CallCount,
    ExcessCause,
    ExpectedCollective,
    IntendedDifference,
    SettingMeaning,
    TracedStep,
    strategy_settings,
)
from distbench.strategies.engine import Engine
from distbench.strategies.replicated_strategy import ReplicatedStrategy
from distbench.strategies.theory.data_parallelism import REPLICATED, ZERO_STAGES
from distbench.strategies.theory.gradient_buckets import (
    MIB,
    ddp_buckets,
    ddp_reductions,
    parameter_elements,
    ready_gradients_of_copies,
)

# an id of a case contains it, so "unset" can't be another value
DEFAULT_BUCKET_MB = 25.0
_FLAG_BYTES = 4
"""Bytes of DDP's flag of a parameter that is used."""


@dataclass(frozen=True)
class DistributedDataParallel(ReplicatedStrategy):
    """DistributedDataParallel: a replica of the model on each rank, gradients all-reduced in buckets."""

    engine_class = "DistributedDataParallel"
    early_imports = ("distbench.strategies.ddp.engine",)
    settings: ClassVar[Mapping[str, SettingMeaning]] = {
        **strategy_settings(GRANULARITY, "bucket_bytes_cap", "smaller_first_bucket"),
        **strategy_settings(OVERLAP, "gradient_as_bucket_view", "static_graph"),
        **strategy_settings("which gradients it waits for", "find_unused_parameters"),
        **strategy_settings(SHARDING, "sharded_optimizer", "updated_tensors", "parameters_as_bucket_view"),
        **strategy_settings(
            "data that is sent in place of whole gradients", "communication_hook", "powersgd", "local_sgd"
        ),
    }

    bucket_cap_mb: Positive = DEFAULT_BUCKET_MB
    """Size in MiB, above 0, of the buckets in which gradients are all-reduced. 25 is torch's default, with a
    smaller first bucket (1 MiB) to start earlier; any other size applies to all buckets."""
    gradient_as_bucket_view: bool = False
    """Let gradients be views into the buckets: saves one copy of the gradients."""
    static_graph: bool = False
    """Promise that the same parameters are used in every step."""
    find_unused_parameters: bool = field(default=False, metadata={"since": 4})
    """Find, by going through the graph of each step, the parameters that its loss does not use: DDP waits for
    the gradient of every other one. Not with static_graph, which finds them once."""
    sharded_optimizer: bool = field(default=False, metadata={"since": 4})
    """Each rank keeps the optimizer state of some tensors, updates them and broadcasts them: torch's
    ZeroRedundancyOptimizer, ZeRO stage 1."""
    powersgd_rank: Annotated[int, Bound(0, 65_536)] = field(default=0, metadata={"since": 4})
    """Reduce each gradient as a product of two matrices of this rank (PowerSGD), which is a different
    training by design. 0: no compression."""
    powersgd_start: Annotated[int, Bound(2)] = field(default=2, metadata={"since": 4})
    """Steps with whole gradients before PowerSGD starts, at least 2, in which DDP orders its buckets. torch's
    default is 1000; it recommends a tenth of the training."""
    min_compression_rate: Positive = field(default=2.0, metadata={"since": 4})
    """Minimum compression rate: PowerSGD sends tensors whole that it would not shrink by this factor."""
    local_sgd_period: Annotated[int, Bound(0)] = field(default=0, metadata={"since": 4})
    """Each rank updates its own replica, and the replicas are averaged every this many steps (post-local
    SGD), which is a different training by design. 0: reduce gradients in each step."""
    local_sgd_start: Count = field(default=1, metadata={"since": 4})
    """Steps that reduce gradients before post-local SGD starts, at least 1."""

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return cls(), cls(sharded_optimizer=True), cls(powersgd_rank=4), cls(local_sgd_period=4)

    @property
    def simplicity(self) -> int:
        if self.intended_difference:
            return 25
        # before stage 1 of DeepSpeed, which adds another framework
        return 15 if self.sharded_optimizer else 10

    @property
    def operations_on_frozen(self) -> Collection[str] | None:
        # traffic and memory of the replacement of full gradients depend on the trained tensors' shapes
        return None if self.intended_difference else super().operations_on_frozen

    @property
    def intended_difference(self) -> IntendedDifference | None:
        if self.powersgd_rank:
            return lossy.powersgd_difference(self.powersgd_rank, self.powersgd_start)
        if self.local_sgd_period:
            return lossy.local_sgd_difference(self.local_sgd_period, self.local_sgd_start)
        return None

    @property
    def steps_per_cycle(self) -> int:
        return self.local_sgd_period or 1

    @property
    def card(self) -> Card:
        if self.powersgd_rank:
            return built_in_card("ddp-powersgd")
        if self.local_sgd_period:
            return built_in_card("ddp-local_sgd")
        return built_in_card("ddp-sharded_optimizer" if self.sharded_optimizer else "ddp")

    @property
    def label(self) -> str:
        changed = [f"{self.bucket_cap_mb:g}mb"] if self.explicit_bucket_cap_mb else []
        changed += ["view"] if self.gradient_as_bucket_view else []
        changed += ["static"] if self.static_graph else []
        changed += ["unused"] if self.find_unused_parameters else []
        changed += ["zero1"] if self.sharded_optimizer else []
        changed += lossy.label_parts(self) if self.intended_difference else []
        return "+".join(["ddp", *changed])

    @property
    def checkpoint_format(self) -> str:
        # torch's ZeroRedundancyOptimizer gathers its states by number
        return "" if self.sharded_optimizer or self.intended_difference else super().checkpoint_format

    @property
    def explicit_bucket_cap_mb(self) -> float | None:
        """Bucket size in MiB that is passed to DDP; None: torch's default, with a smaller first bucket."""
        return None if self.bucket_cap_mb == DEFAULT_BUCKET_MB else self.bucket_cap_mb

    def problem(self, case: Case, machine: Machine) -> str | None:
        return self._option_problem(case) or lossy.lossy_problem(self, case) or super().problem(case, machine)

    def _option_problem(self, case: Case) -> str | None:
        if case.precision.reduce not in (case.precision.master, "bf16", "fp16"):
            return (
                f"precision.reduce = {case.precision.reduce} with precision.master = "
                f"{case.precision.master}: DDP reduces gradients only in the parameters' dtype or in 16 "
                "bits"
            )
        in_bf16 = case.precision.reduce == "bf16" != case.precision.master
        if case.device == "cpu" and in_bf16:
            # torch 2.13: TypeError from register_comm_hook, with gloo too
            return "precision.reduce = bf16: DDP's communication hook for bf16 needs CUDA and NCCL"
        if self.static_graph and case.batch.gradient_accumulation_steps > 1:
            # seen with torch 2.13: expect_autograd_hooks_ INTERNAL ASSERT FAILED in reducer.cpp
            return (
                "static_graph does not support gradient accumulation (gradient_accumulation_steps = "
                f"{case.batch.gradient_accumulation_steps}); use static_graph: false"
            )
        if self.static_graph and self.find_unused_parameters:
            return (
                "DDP's static_graph finds unused parameters in the first step, so "
                "find_unused_parameters has no effect with it; set only one of them"
            )
        kind, name = optimizers.entry_of(case.optimizer), f"optimizer.name = {case.optimizer.name}"
        if self.sharded_optimizer and kind.companion:
            return (
                f"{name} combines two optimizers, but torch's ZeroRedundancyOptimizer shards only one; "
                "use sharded_optimizer: false"
            )
        if self.sharded_optimizer and kind.is_compiled:
            return f"{name} is not supported with sharded_optimizer; use sharded_optimizer: false"
        return None

    def traffic(self, case: Case, parameters: int) -> list[ExpectedCollective] | None:
        # Li et al. 2020 (arXiv 2006.15704): one all-reduce of the gradients, after the last micro-batch
        if case.world_size == 1:
            return []
        if self.intended_difference:
            return lossy.lossy_traffic(self, case, parameters)
        moved = REPLICATED.traffic(
            case, parameters, replicas=case.world_size, reductions=self._reductions(case)
        )
        if self.find_unused_parameters and (elements := parameter_elements(case)):
            # which of the parameters each rank used
            flags = len(elements) * _FLAG_BYTES
            moved.append(ExpectedCollective("all_reduce", flags, "dp_replicate", 1))
        if self.sharded_optimizer:
            # every updated tensor, from its rank to the others: one broadcast of all that a rank has, of a
            # placeholder if it has none
            updated = parameters * DTYPE_BYTES[case.precision.master]
            moved.append(
                ExpectedCollective("broadcast", updated, "dp_replicate", case.world_size, synchronizations=0)
            )
        return moved

    def _reductions(self, case: Case) -> CallCount:
        """All-reduces of the buckets of a step."""
        cap = self.explicit_bucket_cap_mb
        limit = None if cap is None else int(cap * MIB)
        if not self.find_unused_parameters:
            return ddp_reductions(case, ready_gradients_of_copies(case), limit)
        # DDP keeps the buckets of its constructor, which follow the order of the parameters
        elements = parameter_elements(case)
        return UNKNOWN_CALLS if elements is None else CallCount(len(ddp_buckets(case, elements, limit)))

    def model_states(self, case: Case, parameters: int) -> dict[str, float]:
        level = ZERO_STAGES[1] if self.sharded_optimizer else REPLICATED
        return level.model_states(case, parameters, case.world_size)

    def traced_step(self, case: Case) -> TracedStep | str:
        changed = {
            "gradient_as_bucket_view": self.gradient_as_bucket_view,
            "sharded_optimizer": self.sharded_optimizer,
            "powersgd_rank": self.powersgd_rank,
            "local_sgd_period": self.local_sgd_period,
            "precision.reduce": case.precision.reduce != case.precision.master,
        }
        if found := [name for name, is_changed in changed.items() if is_changed]:
            return f"{', '.join(found)}: of ddp, only steps with plain buckets are traced"
        # DDP's reducer, in C++, reads values; it adds buckets to what one device needs for the same samples
        batch = replace(
            case.batch, global_batch_size=case.batch.micro_batch_size * case.batch.gradient_accumulation_steps
        )
        alone = replace(case, strategy=PluginChoice("single"), world_size=1, batch=batch)
        return TracedStep(alone, gradient_copies=1)

    def required_settings(self, case: Case) -> dict[str, Any]:
        if self.intended_difference:
            return lossy.required_settings(self)
        own: dict[str, Any] = {"find_unused_parameters": True} if self.find_unused_parameters else {}
        return own | ({"sharded_optimizer": "ZeroRedundancyOptimizer"} if self.sharded_optimizer else {})

    @property
    def excess_causes(self) -> tuple[ExcessCause, ...]:
        uneven = ExcessCause("optimizer_state", "whole tensors are assigned to ranks, so shares are uneven")
        known = [uneven] if self.sharded_optimizer else []
        if self.find_unused_parameters:
            known.append(
                ExcessCause(
                    "all_reduce",
                    "messages about the parameters that each rank used",
                    ("find_unused_parameters",),
                )
            )
        return tuple(known)

    def build(self, context: RankContext) -> Engine:
        from distbench.strategies.ddp.engine import build_ddp

        if self.intended_difference:
            from distbench.strategies.ddp.lossy_engines import LocalSgdEngine, PowerSgdEngine

            kind = PowerSgdEngine if self.powersgd_rank else LocalSgdEngine
            return build_ddp(self, context, partial(kind, self))
        if not self.sharded_optimizer:
            return build_ddp(self, context)
        from distbench.strategies.ddp.zero_redundancy import ShardedOptimizerEngine

        return build_ddp(self, context, ShardedOptimizerEngine)
