"""Change of a step's time that a machine's own rates explain, from one probe to another.

Only rates count that no code of a model enters: a product of matrices, a copy, and collectives alone. Passes
of the model, its update and collectives between its layers change with that code too, so a change of them is
no evidence of the machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from distbench.core import registry
from distbench.core.case import Case
from distbench.core.units import join_words
from distbench.prediction.estimates import MAX_LOG_EXPONENT, NORMAL_95, PredictedValue
from distbench.prediction.probed_rates import (
    COMPUTATION_RATES,
    Duration,
    DurationCurve,
    ProbedGroup,
    ProbedRates,
    probed_rates,
)
from distbench.prediction.probed_step import probed_step
from distbench.record import Record
from distbench.strategies.base import Strategy

_TOO_FAR_APART = "the rates of the two probes differ too much for an interval"
_Key = tuple[str, ProbedGroup]


@dataclass(frozen=True)
class MachineChange:
    """Ratios of times, after over before, that the rates of a machine explain; each with its interval."""

    step: PredictedValue
    """Of a step of the case."""
    computation: PredictedValue
    """Of what a device computes: an unknown mixture of arithmetic and memory, so from the lower end of the
    one to the upper end of the other."""
    collectives: PredictedValue | None
    """Of what collectives add to the step; None: nothing."""


def machine_change(case: Case, before: Iterable[Record], after: Iterable[Record]) -> MachineChange | str:
    """Change of a step of *case* by the probes among the records of two runs; or why none can be told.

    Spreads are those of single repetitions: a step is at another time than the probe.
    """
    sides: list[ProbedRates] = []
    for records, run in ((before, "first"), (after, "second")):
        rates = probed_rates(case, records, of_one_repetition=True)
        if isinstance(rates, str):
            return f"{rates} in the {run} run"
        if lacking := [name for name in COMPUTATION_RATES if name not in rates.computation]:
            return f"the probe of the {run} run has no rate {join_words(lacking)}"
        sides.append(rates)
    return change_by_rates(case, *sides)


def change_by_rates(case: Case, before: ProbedRates, after: ProbedRates) -> MachineChange | str:
    """Change of a step of *case* from the rates *before* to those *after*; or why none can be told."""
    ends = [_ratio(before.computation[name], after.computation[name]) for name in COMPUTATION_RATES]
    known = [each for each in ends if each is not None]
    if len(known) < len(ends):
        return "the two probes multiplied or copied arrays of other sizes"
    low, high = min(each.low for each in known), max(each.high for each in known)
    computation = PredictedValue(math.sqrt(math.prod(each.value for each in known)), low, high)
    if not 0 < low <= high < math.inf:
        return _TOO_FAR_APART
    if _only_computes(case):
        return MachineChange(computation, computation, None)
    then = probed_step(case, before)
    if isinstance(then, str):
        return then
    if then.unpredicted_part:
        return f"the probe does not measure {then.unpredicted_part}"
    steps, communication_seconds = [], []
    for factor, quantile in ((computation.value, 0.0), (low, -NORMAL_95), (high, NORMAL_95)):
        now = probed_step(case, _carried(before, after, factor, quantile))
        if isinstance(now, str):
            return now
        steps.append(now.seconds.value / then.seconds.value)
        communication_seconds.append(now.terms.get("communication", 0.0))
    if not all(0 < each < math.inf for each in steps):
        return _TOO_FAR_APART
    added = then.terms.get("communication", 0.0)
    collectives = PredictedValue(*(each / added for each in communication_seconds)) if added else None
    return MachineChange(PredictedValue(*steps), computation, collectives)


def _only_computes(case: Case) -> bool:
    """True if a step of *case*, of whatever model, communicates and offloads nothing."""
    strategy: Strategy = registry.create_plugin("strategies", case.strategy)
    return case.world_size == 1 and not strategy.offloads


def _ratio(before: DurationCurve, after: DurationCurve) -> PredictedValue | None:
    """Ratio of two durations of the same amount of work; None: the amounts differ."""
    (first, then), (second, now) = before.points[0], after.points[0]
    if first != second:
        return None
    return PredictedValue(*(_slower(then, now, quantile) for quantile in (0.0, -NORMAL_95, NORMAL_95)))


def _slower(before: Duration, after: Duration, quantile: float) -> float:
    """*after* over *before*, at that *quantile* of the normal distribution of its logarithm."""
    width = quantile * math.hypot(before.relative_sd, after.relative_sd)
    bounded = max(-MAX_LOG_EXPONENT, min(MAX_LOG_EXPONENT, width))
    return after.seconds / before.seconds * math.exp(bounded)


def _carried(before: ProbedRates, after: ProbedRates, computation: float, quantile: float) -> ProbedRates:
    """Rates *before*, carried to the machine of those *after*.

    What is computed takes *computation* times as long. A collective between layers changes as much as it does
    alone.
    """

    def changed(key: _Key, curve: DurationCurve) -> DurationCurve:
        then, now = before.alone[key], after.alone[key]
        return _rescaled(curve, lambda amount: _slower(then.at(amount), now.at(amount), quantile))

    def scaled(curves: Mapping[_Key, DurationCurve]) -> dict[_Key, DurationCurve]:
        both = before.alone.keys() & after.alone.keys()
        return {key: changed(key, curve) for key, curve in curves.items() if key in both}

    return replace(
        before,
        passes=_rescaled(before.passes, lambda _: computation),
        update=_rescaled(before.update, lambda _: computation),
        alone=scaled(before.alone),
        in_step=scaled(before.in_step),
    )


def _rescaled(curve: DurationCurve, factor: Callable[[float], float]) -> DurationCurve:
    """*curve* with each duration times the *factor* of its amount."""
    return DurationCurve([(amount, each.times(factor(amount))) for amount, each in curve.points])
