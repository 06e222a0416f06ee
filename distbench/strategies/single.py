"""``single``: one process, one device, no wrapper: the reference that all others are compared with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.strategies import _in_backward
from distbench.strategies._model_states import Replicated, zero_table
from distbench.strategies.base import Setting, Strategy
from distbench.strategies.description import (
    ALL_STATES,
    PYTORCH_OVERVIEW,
    TAKE_IT,
    ZERO_PAPER,
    Card,
    Claim,
    Meaning,
    points,
)
from distbench.strategies.engine import Engine

_NOTHING = Claim("shards", "Nothing: one process has the whole batch.", PYTORCH_OVERVIEW)
_STILL = Claim("moves", "Nothing.", PYTORCH_OVERVIEW)
_PLAIN = Card(
    "nothing",
    (
        _NOTHING,
        _STILL,
        Claim("keeps", ALL_STATES, ZERO_PAPER),
        Claim(TAKE_IT, "the model fits on one device, and that is fast enough."),
    ),
)
_IN_BACKWARD = Card(
    "nothing",
    (
        _NOTHING,
        _STILL,
        Claim(
            "keeps",
            "Parameters and optimizer state; gradients of one tensor at a time, freed after its update.",
            _in_backward.TUTORIAL,
        ),
        Claim(
            TAKE_IT,
            "everything but the gradients fits on one device, and nothing needs all of them at once: no "
            "clipping, no accumulation.",
        ),
    ),
)


@dataclass(frozen=True)
class Single(Replicated):
    """One process on one device without any wrapper; the reference, always at world size 1."""

    engine = "TorchEngine"
    settings: ClassVar[Mapping[str, Meaning]] = points(_in_backward.WHEN, _in_backward.OPTION)

    optimizer_in_backward: bool = field(default=False, metadata={"since": 4})
    """Update each parameter as soon as its gradient is computed, and free the gradient, so no two need to
    exist at once. Not with clipping, gradient accumulation or a loss scale."""

    @property
    def label(self) -> str:
        return f"single+{_in_backward.SUFFIX}" if self.optimizer_in_backward else "single"

    @property
    def simplicity(self) -> int:
        return 1 if self.optimizer_in_backward else 0

    @property
    def card(self) -> Card:
        return _IN_BACKWARD if self.optimizer_in_backward else _PLAIN

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return cls(), cls(optimizer_in_backward=True)

    @property
    def moves_frozen(self) -> Collection[str] | None:
        # a formula knows the shapes of what the model has, and not which of them are trained
        return None if self.optimizer_in_backward else super().moves_frozen

    def problem(self, case: Case, machine: Machine) -> str | None:
        reason = _in_backward.problem(case) if self.optimizer_in_backward else None
        return reason or super().problem(case, machine)

    def expected(self, case: Case) -> dict[str, Any]:
        return {_in_backward.OPTION: True} if self.optimizer_in_backward else {}

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        states = zero_table(case, parameters, stored=case.precision.master)
        if not self.optimizer_in_backward:
            return states
        return _in_backward.model_states(states, _in_backward.largest_tensor(case))

    def world_sizes(self, asked: Sequence[int]) -> Sequence[int]:
        return (1,)

    def build(self, setting: Setting) -> Engine:
        from distbench.strategies.torch_engine.engine import TorchEngine
        from distbench.strategies.torch_engine.in_backward import InBackwardEngine
        from distbench.strategies.torch_engine.modules import plain_module

        kind = InBackwardEngine if self.optimizer_in_backward else TorchEngine
        return kind(setting, *plain_module(setting))
