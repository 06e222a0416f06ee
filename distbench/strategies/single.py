"""``single``: one process, one device, no wrapper: the reference that all others are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distbench.case import Case
from distbench.env import Machine
from distbench.strategies._model_states import zero_table
from distbench.strategies.base import Engine, Setting, Strategy


@dataclass(frozen=True)
class Single(Strategy):
    """One process on one device without any wrapper; the reference, always at world size 1."""

    @property
    def engine(self) -> str:
        return "TorchEngine"

    @property
    def label(self) -> str:
        return "single"

    def world_sizes(self, asked: Sequence[int]) -> Sequence[int]:
        return (1,)

    def problem(self, case: Case, machine: Machine) -> str | None:
        from distbench.strategies._problems import state_problem

        return state_problem(case)

    def collectives(self, case: Case, parameters: int) -> dict[str, float]:
        return {}

    def build(self, setting: Setting) -> Engine:
        from distbench.strategies._torch import TorchEngine, plain_module

        return TorchEngine(setting, *plain_module(setting))

    def model_states(self, case: Case, parameters: int) -> dict[str, float]:
        # the optimizer updates the parameters themselves
        return zero_table(case, parameters, stored=case.precision.master)
