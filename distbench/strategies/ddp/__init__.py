"""``ddp``: torch.nn.parallel.DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from distbench.bounds import Positive
from distbench.case import BYTES, Case
from distbench.env import Machine
from distbench.strategies._model_states import Replicated
from distbench.strategies.base import Engine, Setting, Strategy
from distbench.strategies.description import (
    ALL_STATES,
    PORTIONS,
    PYTORCH_OVERVIEW,
    TIMING,
    ZERO_PAPER,
    Card,
    Claim,
    Meaning,
    points,
)

_DOCS = "https://docs.pytorch.org/docs/stable/notes/ddp.html"

# an id of a case holds it, so that "unset" can't be another value
TORCH_BUCKET_MB = 25.0


@dataclass(frozen=True)
class DistributedDataParallel(Replicated):
    """DistributedDataParallel: a whole copy of the model on each rank, gradients all-reduced in buckets."""

    engine = "DistributedDataParallel"
    simplicity = 10
    card = Card(
        "nothing",
        (
            Claim("shards", "Nothing: every rank has a copy of the model and samples of its own.", _DOCS),
            Claim(
                "moves",
                "2 x the parameters per step: an all-reduce of the gradients during the backward pass.",
                ZERO_PAPER,
            ),
            Claim("keeps", ALL_STATES, ZERO_PAPER),
            Claim("take it if", "the model fits on one device.", PYTORCH_OVERVIEW),
        ),
    )
    early = ("distbench.strategies.ddp.engine",)
    settings: ClassVar[Mapping[str, Meaning]] = {
        **points(PORTIONS, "bucket_bytes_cap", "smaller_first_bucket"),
        **points(TIMING, "gradient_as_bucket_view", "static_graph"),
    }

    bucket_cap_mb: Positive = TORCH_BUCKET_MB
    """Size in MiB, above 0, of the buckets in which gradients are all-reduced. 25, torch's own, leaves them
    to torch, which makes the first smaller (1 MiB), to begin earlier; any other size is that of all."""
    gradient_as_bucket_view: bool = False
    """Let gradients be views into the buckets: saves one copy of the gradients."""
    static_graph: bool = False
    """Promise that the same parameters are used in every step."""

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return (cls(),)

    @property
    def label(self) -> str:
        changed = [f"{self.bucket_cap_mb:g}mb"] if self.bucket_cap_asked else []
        changed += ["view"] if self.gradient_as_bucket_view else []
        changed += ["static"] if self.static_graph else []
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
        return super().problem(case, machine)

    def collectives(self, case: Case, parameters: int) -> dict[str, float]:
        # Li et al. 2020 (arXiv 2006.15704): one all-reduce of the gradients, after the last micro-batch
        if case.world_size == 1:
            return {}
        return {"all_reduce": parameters * BYTES[case.precision.reduce]}

    def build(self, setting: Setting) -> Engine:
        from distbench.strategies.ddp.engine import build_ddp

        return build_ddp(self, setting)
