"""Theory of the cases of a plan: model states and traffic, before anything is launched."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.core import registry
from distbench.core.units import MISSING_TEXT, format_bytes
from distbench.plan import PlannedCase
from distbench.strategies.base import Strategy
from distbench.workloads.base import workload_of

STATES_TEXT = (
    "STATES: model states of a rank by theory (parameters, gradients, optimizer states, master weights), "
    "offloaded ones included; activations, buffers and the CUDA context come on top. TRAFFIC: payload of a "
    "rank's collectives per step by theory, each array in full."
)


@dataclass(frozen=True)
class CaseTheory:
    """Bytes of a case by its strategy's theory; None: it has none, or a plan does not know the model."""

    states: float | None
    """Model states of a rank."""
    traffic: float | None
    """Payload of a rank's collectives in a step."""

    @property
    def texts(self) -> tuple[str, str]:
        """Both for people."""
        states, traffic = (
            MISSING_TEXT if each is None else format_bytes(each) for each in (self.states, self.traffic)
        )
        return states, traffic


def case_theory(item: PlannedCase) -> CaseTheory:
    """Theory of the case of *item*; none if it can't run: its sizes may fit no formula."""
    case = item.case
    strategy: Strategy = registry.create_plugin("strategies", case.strategy)
    parameters = workload_of(case).parameters()
    if parameters is None or item.problem:
        return CaseTheory(None, None)
    states = strategy.model_states(case, parameters)
    traffic = strategy.traffic(case, parameters)
    return CaseTheory(
        None if states is None else sum(states.values()),
        None if traffic is None else sum(each.bytes for each in traffic),
    )


def theory_json(item: PlannedCase) -> dict[str, float | None]:
    """Theory of the case of *item* as ``--json`` prints it."""
    found = case_theory(item)
    return {"states_bytes": found.states, "traffic_bytes": found.traffic}
