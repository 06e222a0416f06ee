"""``single``: one process, one device, no wrapper: the reference that all others are compared with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.strategies import _in_backward
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.cards import Card, built_in_card
from distbench.strategies.description import SettingMeaning, TracedStep, strategy_settings
from distbench.strategies.engine import Engine
from distbench.strategies.replicated_strategy import ReplicatedStrategy


@dataclass(frozen=True)
class Single(ReplicatedStrategy):
    """One process on one device without any wrapper; the reference, always at world size 1."""

    engine_class = "TorchEngine"
    settings: ClassVar[Mapping[str, SettingMeaning]] = strategy_settings(
        _in_backward.UPDATE_TIMING, _in_backward.OPTION
    )

    optimizer_in_backward: bool = field(default=False, metadata={"since": 4})
    """Update each parameter as soon as its gradient is computed, and free the gradient, so no two need to
    exist at once. Not with clipping, gradient accumulation or a loss scale."""

    @property
    def label(self) -> str:
        return f"single+{_in_backward.LABEL}" if self.optimizer_in_backward else "single"

    @property
    def simplicity(self) -> int:
        return 1 if self.optimizer_in_backward else 0

    @property
    def card(self) -> Card:
        return built_in_card("single-in_backward" if self.optimizer_in_backward else "single")

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return cls(), cls(optimizer_in_backward=True)

    @property
    def operations_on_frozen(self) -> Collection[str] | None:
        # a formula knows the shapes of the model's tensors, not which of them are trained
        return None if self.optimizer_in_backward else super().operations_on_frozen

    def problem(self, case: Case, machine: Machine) -> str | None:
        reason = _in_backward.optimizer_in_backward_problem(case) if self.optimizer_in_backward else None
        return reason or super().problem(case, machine)

    def required_settings(self, case: Case) -> dict[str, Any]:
        return {_in_backward.OPTION: True} if self.optimizer_in_backward else {}

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        states = super().model_states(case, parameters)
        if states is None or not self.optimizer_in_backward:
            return states
        return _in_backward.with_gradient_bytes(states, _in_backward.largest_tensor_gradient_bytes(case))

    def traced_step(self, case: Case) -> TracedStep:
        return TracedStep(case)

    def world_sizes(self, requested: Sequence[int]) -> Sequence[int]:
        return (1,)

    def build(self, context: RankContext) -> Engine:
        from distbench.strategies.torch_engine.engine import TorchEngine
        from distbench.strategies.torch_engine.in_backward import InBackwardEngine
        from distbench.strategies.torch_engine.modules import load_plain_module

        kind = InBackwardEngine if self.optimizer_in_backward else TorchEngine
        return kind(context, *load_plain_module(context))
