"""Context parallelism by theory: what it needs of a workload, and what it moves. Without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distbench import registry
from distbench.case import BYTES, Case
from distbench.strategies.description import ExpectedCollective

if TYPE_CHECKING:
    from distbench.workloads.base import Workload
    from distbench.workloads.context import Context


@dataclass(frozen=True)
class ContextParallelism:
    """How the rows of a case are cut by positions over *devices* that share them."""

    devices: int

    def problem(self, case: Case) -> str | None:
        """Why *case* can't be trained so, or None if it can."""
        context = context_of(case)
        if context is None:
            return (
                f"context parallelism: the workload {case.workload.name} does not say how its rows are cut "
                "by positions; use transformer, or a plug-in with Workload.context"
            )
        if reason := context.problem(self.devices, heads=True):
            return f"context parallelism over {self.devices} devices: {reason}"
        if case.compile != "none":
            return "compile is not offered with context parallelism; use compile: false"
        if case.precision.float8 != "none":
            return "float8 is not offered with context parallelism; use precision: bf16"
        return None

    def expected(self, case: Case) -> dict[str, Any]:
        """What ``Engine.effective`` must show of it."""
        context = context_of(case)
        positions = context.positions // self.devices if context else None
        return {
            "mesh.cp": self.devices,
            "context_parallel": "ulysses",
            "positions_per_rank": positions,
        }

    def collectives(self, case: Case, samples: int) -> list[ExpectedCollective]:
        """Collectives of a rank in a step over the dimension ``cp``, for *samples* rows that it shares.

        Jacobs et al. 2023 (DeepSpeed-Ulysses, arXiv:2309.14509, section 3.2): each layer exchanges queries,
        keys, values and what comes out, forward, and the gradients of all four backward. Of grouped heads
        keys and values are as much smaller. A layer that is computed again exchanges forward again.
        """
        context = context_of(case)
        if self.devices == 1 or context is None:
            return []
        passes = 2 if case.activation_checkpointing == "none" else 3
        positions = samples * context.positions // self.devices
        size = passes * positions * context.exchanged * BYTES[case.precision.compute]
        calls = passes * 4 * context.layers * case.batch.gradient_accumulation_steps
        return [ExpectedCollective("all_to_all", float(size), "cp", calls)]


def context_of(case: Case) -> Context | None:
    """How the rows of *case* can be cut, if its workload says so."""
    workload: Workload = registry.make("workloads", case.workload)
    return workload.context()
