"""``onebit``: optimizers of DeepSpeed, up to 0.19.6, that reduce momentum with one bit per element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from distbench.core.bounds import Bound, Count
from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.strategies._deepspeed import DeepSpeedStrategy
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.cards import Card, built_in_card
from distbench.strategies.description import (
    GRANULARITY,
    OVERLAP,
    PLACEMENT,
    SHARDING,
    ExpectedCollective,
    IntendedDifference,
    SettingMeaning,
    StrategyDescription,
    strategy_settings,
)
from distbench.strategies.engine import Engine
from distbench.strategies.onebit import limits, theory

_OPTIMIZER_CLASSES = {
    "adam": "deepspeed.runtime.fp16.onebit.adam.OnebitAdam",
    "zero_one_adam": "deepspeed.runtime.fp16.onebit.zoadam.ZeroOneAdam",
    "lamb": "deepspeed.runtime.fp16.onebit.lamb.OnebitLamb",
}


@dataclass(frozen=True)
class OneBit(DeepSpeedStrategy):
    """1-bit Adam, 0/1 Adam and 1-bit LAMB of DeepSpeed up to 0.19.6: a different training by design."""

    engine_class = "DeepSpeedEngine"
    settings: ClassVar[Mapping[str, SettingMeaning]] = {
        **strategy_settings("the strategy itself", "optimizer_wrapper"),
        **strategy_settings("data that is sent in place of whole gradients", "onebit"),
        **strategy_settings(SHARDING, "zero_stage"),
        **strategy_settings(GRANULARITY, "reduce_bucket_size", "allgather_bucket_size"),
        **strategy_settings(OVERLAP, "overlap_comm", "throughput_timer"),
        **strategy_settings(PLACEMENT, "offload"),
    }

    algorithm: Literal["adam", "zero_one_adam", "lamb"] = "adam"
    """adam: 1-bit Adam (arXiv:2102.02888). zero_one_adam: 0/1 Adam (arXiv:2202.06009). Both need
    optimizer: adamw. lamb: 1-bit LAMB (arXiv:2104.06069), which needs optimizer: lamb."""
    freeze_step: Annotated[int, Bound(2)] = 2
    """Steps before the variance is frozen and compression starts, at least 2: DeepSpeed's freeze_step, and
    var_freeze_step + 1 of 0/1 Adam, whose defaults of 100000 are for long trainings."""
    var_update_scaler: Count = 16
    """zero_one_adam only: number of updates of the variance after which the interval between two of them
    doubles, until it is frozen. 16 is DeepSpeed's default."""
    local_steps: Annotated[int, Bound(1, 65_536)] = 1
    """zero_one_adam only: largest number of steps that ranks train alone between two reductions, a power of
    2, reached by doubling the interval in each step after the freeze: DeepSpeed's local_step_clipper, with a
    local_step_scaler of 1."""

    @property
    def label(self) -> str:
        name = {"adam": "1bit-adam", "zero_one_adam": "01-adam", "lamb": "1bit-lamb"}[self.algorithm]
        options = {
            f"freeze{self.freeze_step}": self.freeze_step != OneBit.freeze_step,
            f"var{self.var_update_scaler}": self.var_update_scaler != OneBit.var_update_scaler,
            f"local{self.local_steps}": self.local_steps != OneBit.local_steps,
        }
        return "+".join([name, *(word for word, is_said in options.items() if is_said)])

    @property
    def simplicity(self) -> int:
        # after DDP's own compression, which needs no older framework beside the current one
        return 46

    @property
    def card(self) -> Card:
        return built_in_card(f"onebit-{self.algorithm}")

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return cls(), cls(algorithm="zero_one_adam"), cls(algorithm="lamb")

    @property
    def intended_difference(self) -> IntendedDifference:
        # no gradient differs before the first update, which all three skip
        return IntendedDifference(
            theory.difference_text(self),
            changes_gradients=False,
            # from the third step on, the skipped one is less than half of all
            bounded_from=2,
            # a variance that is frozen early is small, so updates are large
            bounded_until=self.freeze_step,
        )

    def description(self) -> StrategyDescription:
        # only for this strategy: under any other, a different optimizer is different work
        shared, own = (
            super().description(),
            strategy_settings("the optimizer compresses", "optimizer.class", "optimizer.kernel"),
        )
        return replace(shared, settings={**shared.settings, **own})

    @property
    def steady_from_step(self) -> int:
        return self.freeze_step + self.local_steps.bit_length() - 1

    @property
    def steps_per_cycle(self) -> int:
        return self.local_steps

    def mesh_sizes(self, ranks: int) -> dict[str, int]:
        return {"dp_replicate": ranks}

    def problem(self, case: Case, machine: Machine) -> str | None:
        return limits.onebit_problem(self, case, machine) or self.toolchain_problem(case, machine)

    def imports(self, case: Case) -> tuple[str, ...]:
        own = ("distbench.strategies.onebit.engine", _OPTIMIZER_CLASSES[self.algorithm].rpartition(".")[0])
        return (*super().imports(case), *own)

    def optimizer_class(self, case: Case) -> tuple[str, str]:
        cls = _OPTIMIZER_CLASSES[self.algorithm]
        return cls, cls.rpartition(".")[2]

    def required_settings(self, case: Case) -> dict[str, Any]:
        own: dict[str, Any] = {
            "freeze_step": self.freeze_step,
            "reduced_by": "NcclBackend" if case.device == "cuda" else "GlooBackend",
        }
        if self.algorithm == "zero_one_adam":
            own |= {"var_update_scaler": self.var_update_scaler, "local_steps": self.local_steps}
        return {f"onebit.{name}": value for name, value in own.items()}

    def traffic(self, case: Case, parameters: int) -> list[ExpectedCollective] | None:
        return theory.onebit_traffic(self, case, parameters)

    def model_states(self, case: Case, parameters: int) -> dict[str, float]:
        return theory.onebit_model_states(self, case, parameters)

    def build(self, context: RankContext) -> Engine:
        from distbench.strategies.onebit.engine import build_onebit

        return build_onebit(self, context)
