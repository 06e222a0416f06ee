"""Base class of strategies with a full model on every device. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.strategies.base import TORCH_CHECKPOINT, Strategy
from distbench.strategies.description import ExpectedCollective
from distbench.strategies.requirements import optimizer_problem
from distbench.strategies.theory.data_parallelism import REPLICATED


class ReplicatedStrategy(Strategy):
    """A full model on every device, updated by torch's own optimizer."""

    @property
    def checkpoint_format(self) -> str:
        return TORCH_CHECKPOINT

    def problem(self, case: Case, machine: Machine) -> str | None:
        return optimizer_problem(case)

    def mesh_sizes(self, ranks: int) -> dict[str, int]:
        return {"dp_replicate": ranks}

    @property
    def operations_on_frozen(self) -> Collection[str] | None:
        return ()

    def traffic(self, case: Case, parameters: int) -> Sequence[ExpectedCollective] | None:
        return ()

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        return REPLICATED.model_states(case, parameters)
