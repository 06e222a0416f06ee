from __future__ import annotations

from dataclasses import dataclass

from distbench.core.case import Case
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class DoubledState(Strategy):
    """DDP whose optimizer keeps its moments twice."""

    @property
    def engine_class(self) -> str:
        return "DistributedDataParallel"

    @property
    def label(self) -> str:
        return "doubled-state"

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        from distbench.strategies.ddp import DistributedDataParallel

        return DistributedDataParallel().model_states(case, parameters)

    def build(self, context: RankContext) -> Engine:
        from distbench.strategies.ddp import DistributedDataParallel

        engine = DistributedDataParallel().build(context)
        step = engine.step

        def hoarding_step() -> None:
            step()
            for state in engine._optimizer.state.values():  # type: ignore[attr-defined]
                for moment in ("exp_avg", "exp_avg_sq"):
                    state.setdefault(f"{moment}_again", state[moment].clone())

        engine.step = hoarding_step  # type: ignore[method-assign]
        return engine
