"""Time of a step from the rates that a probe measured, and the theory of the case's strategy.

``passes x pass(samples) x layers / (1 - bubble) + update(parameters) + sum over collectives``. Nothing is
fitted to measured steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from distbench import optimizers
from distbench.core import registry
from distbench.core.case import NATIVE_ENGINE, Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.core.meshes import DATA_DIMENSIONS
from distbench.prediction.estimates import PredictedValue, StepPrediction, Term
from distbench.prediction.probed_rates import Duration, ProbedGroup, ProbedRates
from distbench.prediction.recorded_layouts import with_model_layout
from distbench.strategies.base import Strategy
from distbench.strategies.description import ExpectedCollective
from distbench.workloads.base import workload_of
from distbench.workloads.layouts import ModelLayout

_LEAST_RELATIVE_SD, _LEAST_WITH_TENSORS_SPLIT = 0.1, 0.2
"""Standard deviations that no prediction is below, whatever the spread of its rates: by the errors of 22
cases of two CPU ranks (docs/tuning.md). Distributed tensors take time on the host that no rate has."""
_OPERATION_OF_PROBE = {"send": "send_recv"}
"""Operations that a probe measures under another name."""
_COUNTED_WITH_OTHER = ("recv",)
"""Operations whose time is that of their counterpart."""
_ANY_MOMENTUM = 0.9
"""Momentum that gives SGD a state for each parameter, of which theory says who keeps it."""


def probed_step(case: Case, rates: ProbedRates) -> StepPrediction | str:
    """Time of a step of *case* by *rates*; or the reason why it can't be told."""
    strategy: Strategy = registry.create_plugin("strategies", case.strategy)
    if reason := _refusal(case, strategy):
        return reason
    if isinstance(rates.layout, ModelLayout):
        case = with_model_layout(case, rates.layout)
    parameters, passes = workload_of(case).parameters(), strategy.rank_passes(case)
    if parameters is None:
        return _unknown_size(rates.layout)
    if passes is None:
        return f"{case.strategy.name} has no theory of its passes"
    if passes.bubble is None:
        return "the bubble of this schedule depends on the halves of its backward pass"
    computation = rates.passes.at(passes.samples).times(passes.count * passes.layer_share)
    bubble = computation.times(passes.bubble / (1 - passes.bubble))
    traffic, mesh = strategy.traffic(case, parameters), strategy.mesh_sizes(case.world_size)
    communication = _communication(traffic, mesh, case, rates, computation.seconds)
    if isinstance(communication, str):
        return communication
    update = _update(case, strategy, parameters, rates)
    if isinstance(update, str):
        return update
    terms: dict[Term, Duration] = {
        "compute": computation,
        "communication": communication,
        "bubble": bubble,
        "update": update,
    }
    whole = sum_durations(terms.values())
    least = _LEAST_WITH_TENSORS_SPLIT if mesh.get("tp", 1) > 1 else _LEAST_RELATIVE_SD
    sd = max(least, whole.relative_sd)
    return StepPrediction(
        {name: each.seconds for name, each in terms.items() if each.seconds},
        PredictedValue.with_relative_sd(whole.seconds, sd),
        "probe",
        unpredicted_part="offload" if strategy.offloads else "",
    )


def _refusal(case: Case, strategy: Strategy) -> str:
    """Reason why no rate of a probe tells the time of *case*; empty: there is none."""
    if case.engine != NATIVE_ENGINE:
        return f"engine {case.engine.name}: the probe does not measure the overhead of a framework"
    if strategy.intended_difference:
        return "lossy communication: its compression is not probed"
    if strategy.mesh_sizes(case.world_size).get("ep", 1) > 1:
        return "expert parallelism: the probe does not measure how evenly tokens are routed"
    return ""


def _unknown_size(layout: ModelLayout | str | None) -> str:
    """Reason why the size of a model is unknown whose *layout* a probe recorded, or did not."""
    if isinstance(layout, ModelLayout):
        frozen = f"{len(layout.frozen)} of {len(layout.parameters)} parameter tensors"
        return f"{frozen} are not trained, and theory has no such models"
    return layout or "the size of the model is known only to its own code"


def _update(case: Case, strategy: Strategy, parameters: int, rates: ProbedRates) -> Duration | str:
    """Time in which a rank updates its share of *parameters*."""
    if not optimizers.keeps_state(case.optimizer):
        # a rank that updates a share may keep more gradients than it updates, but never more states
        case = replace(case, optimizer=replace(case.optimizer, momentum=_ANY_MOMENTUM))
    states = strategy.model_states(case, parameters)
    if states is None:
        return f"{case.label} has no theory of its model states"
    element = DTYPE_BYTES[case.precision.optimizer_state]
    updated = states["optimizer_state"] / optimizers.bytes_per_parameter(case.optimizer, element)
    return rates.update.at(updated * DTYPE_BYTES[case.precision.master])


def _communication(
    expected: Iterable[ExpectedCollective] | None,
    mesh: Mapping[str, int],
    case: Case,
    rates: ProbedRates,
    computed: float,
) -> Duration | str:
    """Time that the *expected* collectives of a rank add to its computation, *computed* seconds."""
    if expected is None:
        return f"{case.label} has no theory of its traffic"
    added: list[Duration] = []
    overlapped: list[Duration] = []
    unhidden_calls: list[float] = []
    for each in expected:
        if not each.bytes or each.op in _COUNTED_WITH_OTHER:
            continue
        if each.calls is None:
            return f"{each.op}: theory does not say in how many calls"
        found = _collective(each, rates, rates.group(mesh, each.dimension, case.world_size))
        if isinstance(found, str):
            return found
        # GPUs move parameters and gradients on a stream of their own; CPU ranks need the same cores for both
        is_beside = case.device == "cuda" and each.dimension in DATA_DIMENSIONS
        (overlapped if is_beside else added).append(found)
        unhidden_calls += [found.seconds / each.calls] if is_beside else []
    moved = sum_durations(overlapped)
    # the first gather, or the last reduction, has nothing beside it
    exposed = Duration(max(max(unhidden_calls, default=0.0), moved.seconds - computed), moved.relative_sd)
    return sum_durations([*added, exposed])


def _collective(each: ExpectedCollective, rates: ProbedRates, group: ProbedGroup) -> Duration | str:
    """Time of all calls of *each* in a *group*.

    Calls at which ranks have to meet cost what they add to a step; those that follow another one at once
    cost what they take alone.
    """
    issued, calls = each.issued_as or each.op, each.calls or 1
    op = _OPERATION_OF_PROBE.get(issued, issued)
    alone = rates.alone.get((op, group))
    if alone is None:
        return f"the probe did not measure {op} among {group}"
    synchronizations = calls if each.synchronizations is None else min(each.synchronizations, calls)
    once = alone.at(each.bytes / calls)
    met = rates.duration_between_layers(op, group, each.bytes / calls) or once
    return sum_durations([met.times(synchronizations), once.times(calls - synchronizations)])


def sum_durations(parts: Iterable[Duration]) -> Duration:
    """Sum of *parts*, whose errors are independent."""
    listed = list(parts)
    # records of others may hold numbers whose sums and squares are no floats: hypot and sum give infinity
    total = sum(each.seconds for each in listed)
    deviation = math.hypot(*(each.seconds * each.relative_sd for each in listed))
    return Duration(total, deviation / total if total else 0.0)
