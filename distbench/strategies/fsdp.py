"""``fsdp``: torch's fully sharded data parallelism, FSDP2 (``fully_shard``) or the older FSDP1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distbench.case import BYTES, Case
from distbench.env import Machine
from distbench.strategies._model_states import zero_table
from distbench.strategies._problems import state_problem
from distbench.strategies.base import Engine, Setting, Strategy


@dataclass(frozen=True)
class FullyShardedDataParallel(Strategy):
    """FSDP: parameters, gradients and optimizer state sharded over ranks, wrapped layer by layer."""

    version: Literal[1, 2] = 2
    """2: ``fully_shard`` (FSDP2). 1: ``FullyShardedDataParallel``, for those who still run it."""
    sharding: Literal["full", "grad_op", "hybrid"] = "full"
    """full: parameters are gathered again for the backward pass (ZeRO-3). grad_op: they stay
    gathered from forward to backward (ZeRO-2). hybrid: sharded inside groups, replicated across."""
    replicas: int = 2
    """How many copies of the model a hybrid shard keeps; world size / replicas ranks share one."""
    cpu_offload: bool = False
    """Keep parameters, gradients and optimizer state on the CPU."""
    reshard_root: bool = False
    """Shard the root's parameters (embedding, head) again after forward too; they are needed
    first in the backward pass, so torch keeps them by default. FSDP2 only."""
    reduce_each_micro_batch: bool = True
    """Reduce-scatter after every micro-batch; false: accumulate whole gradients in memory and
    reduce once a step."""

    @property
    def engine(self) -> str:
        return "FSDPModule" if self.version == 2 else "FullyShardedDataParallel"

    @property
    def label(self) -> str:
        name = "fsdp1" if self.version == 1 else "fsdp"
        if self.sharding != "full":
            name += f"-{self.sharding.replace('_', '-')}"
        return f"{name}+offload" if self.cpu_offload else name

    def problem(self, case: Case, machine: Machine) -> str | None:
        if self.sharding == "hybrid":
            if case.world_size < 2:
                return "a hybrid shard needs at least 2 ranks"
            if self.version == 1 and case.world_size // self.replicas < 2:
                # it falls back to NO_SHARD inside groups of one rank and never reduces across them
                return "FSDP1 does not synchronise the replicas of a hybrid shard whose groups have 1 rank"
            if case.world_size % self.replicas:
                return (
                    f"a hybrid shard needs a world size that replicas divides: "
                    f"{case.world_size} ranks, replicas = {self.replicas}"
                )
        if self.version == 1 and self.cpu_offload and case.device == "cpu":
            return "FSDP1 with CPU offload needs an accelerator to offload from"
        if self.version == 2 and case.optimizer.name == "sgd" and case.optimizer.kernel == "fused":
            return "torch has no fused SGD for FSDP2's sharded tensors; set optimizer.kernel: foreach"
        return state_problem(case)

    def collectives(self, case: Case, parameters: int) -> dict[str, float]:
        # Zhao et al. 2023 (arXiv 2304.11277): gathered for the forward pass and, if sharded again
        # after it, for the backward pass; gradients reduce-scattered inside a group of shards and
        # their shards all-reduced across the replicas
        shards = case.world_size // self.replicas if self.sharding == "hybrid" else case.world_size
        micro = case.batch.gradient_accumulation_steps
        reductions = micro if self.reduce_each_micro_batch else 1
        gathers = 1 if self.sharding == "grad_op" else 2
        reduced = reductions * parameters * BYTES[case.precision.reduce]
        found: dict[str, float] = {}
        if shards > 1:
            found["all_gather"] = micro * gathers * parameters * BYTES[case.precision.compute]
            found["reduce_scatter"] = reduced
        if shards < case.world_size:
            found["all_reduce"] = reduced / shards
        return found

    def build(self, setting: Setting) -> Engine:
        if self.version == 1:
            from distbench.strategies._fsdp1 import build_fsdp1

            return build_fsdp1(self, setting)
        from distbench.strategies._fsdp2 import build_fsdp2

        return build_fsdp2(self, setting)

    def model_states(self, case: Case, parameters: int) -> dict[str, float]:
        over = case.world_size // self.replicas if self.sharding == "hybrid" else case.world_size
        stored = case.precision.master
        found = zero_table(case, parameters, stored=stored, shards=(over, over, over))
        if case.batch.gradient_accumulation_steps > 1 and not self.reduce_each_micro_batch:
            # until the last micro-batch whole gradients stand, in FSDP1 as the backward pass made them
            whole = case.precision.compute if self.version == 1 else case.precision.reduce
            found["gradients"] = max(found["gradients"], parameters * BYTES[whole])
        return found
