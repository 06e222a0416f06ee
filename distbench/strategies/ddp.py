"""``ddp``: torch.nn.parallel.DistributedDataParallel."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.case import BYTES, Case
from distbench.env import Machine
from distbench.strategies._model_states import zero_table
from distbench.strategies._problems import state_problem
from distbench.strategies.base import Engine, Setting, Strategy


@dataclass(frozen=True)
class DistributedDataParallel(Strategy):
    """DistributedDataParallel: a whole copy of the model on each rank, gradients all-reduced in buckets."""

    bucket_cap_mb: float = 25.0
    """Size in MiB of the buckets in which gradients are all-reduced (torch's default)."""
    gradient_as_bucket_view: bool = False
    """Let gradients be views into the buckets: saves one copy of the gradients."""
    static_graph: bool = False
    """Promise that the same parameters are used in every step."""

    @property
    def engine(self) -> str:
        return "DistributedDataParallel"

    @property
    def label(self) -> str:
        changed = [f"{self.bucket_cap_mb:g}mb"] if self.bucket_cap_mb != 25.0 else []
        changed += ["view"] if self.gradient_as_bucket_view else []
        changed += ["static"] if self.static_graph else []
        return "+".join(["ddp", *changed])

    def problem(self, case: Case, machine: Machine) -> str | None:
        if case.precision.reduce not in (case.precision.master, "bf16", "fp16"):
            return (
                f"DDP reduces gradients in the parameters' dtype or in 16 bits: precision.reduce = "
                f"{case.precision.reduce} with precision.master = {case.precision.master}"
            )
        in_bf16 = case.precision.reduce == "bf16" != case.precision.master
        if case.device == "cpu" and in_bf16:
            # torch 2.13: TypeError from register_comm_hook, with gloo too
            return "DDP's hook that reduces gradients in bf16 needs CUDA and NCCL: precision.reduce = bf16"
        if self.static_graph and case.batch.gradient_accumulation_steps > 1:
            # seen with torch 2.13: expect_autograd_hooks_ INTERNAL ASSERT FAILED in reducer.cpp
            return (
                "DDP with static_graph fails where gradients are accumulated unreduced (no_sync): "
                f"gradient_accumulation_steps = {case.batch.gradient_accumulation_steps}"
            )
        return state_problem(case)

    def collectives(self, case: Case, parameters: int) -> dict[str, float]:
        # Li et al. 2020 (arXiv 2006.15704): one all-reduce of the gradients, after the last micro-batch
        if case.world_size == 1:
            return {}
        return {"all_reduce": parameters * BYTES[case.precision.reduce]}

    def build(self, setting: Setting) -> Engine:
        from distbench.strategies._ddp import build_ddp

        return build_ddp(self, setting)

    def model_states(self, case: Case, parameters: int) -> dict[str, float]:
        # the optimizer updates the parameters themselves
        return zero_table(case, parameters, stored=case.precision.master)
