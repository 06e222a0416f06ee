"""Time limits that a suite leaves open: by what a case has to compute, move and draw, from formulas alone.

They end what hangs and nothing else, so the rates below are a tenth of those of slow machines. They are the
same whenever they are asked for: nothing is timed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from distbench import optimizers
from distbench.core import registry
from distbench.core.case import BYTES, Case, Deadlines, Limits, Measure
from distbench.core.job import PlannedTrial, job_kind
from distbench.plan.pace import computed_s, updated_s
from distbench.strategies.base import Strategy
from distbench.workloads.base import Workload

_MARGIN = 10
# bytes a second of the slowest network and disk that anybody trains over: 1 Gbit/s
_SLOWEST = 1e8
# seconds an element that a rank keeps in the build: docs/measuring.md has 51 ns where it took longest
_BUILT_S = 5e-7
# seconds an element of weights that the model's own constructor draws: docs/measuring.md has 25 ns
_DRAWN_S = 2.5e-7
# a rendezvous of many ranks
_JOINED_S = 0.25
_COMPILED_S = 900.0
_LEAST = Limits()


def limits_of(asked: Deadlines, task: PlannedTrial, measure: Measure) -> Limits:
    """Limits of the trial of *task*: those that are *asked* for, and the others by its size.

    *measure* says how many steps a trial has that is timed.
    """
    case = task.case
    step, build = _step_s(case), _build_s(case)
    own = Limits(
        prepare=_LEAST.prepare,
        start=max(_LEAST.start, _JOINED_S * case.world_size),
        build=max(_LEAST.build, build),
        step=max(_LEAST.step, step),
    )
    kind = job_kind(task.job.kind)
    predicted, steps = kind.predicted(task) or 0.0, kind.steps(task, measure)
    own = own.with_(asked)
    trial = max(_LEAST.trial, own.start + own.build + max(steps * step, _MARGIN * predicted))
    return own.with_(Deadlines(trial=math.ceil(trial))).with_(asked)


def limits_of_all(asked: Deadlines, tasks: Iterable[PlannedTrial], measure: Measure) -> list[Limits]:
    """Limits of each of *tasks*; trials of a case share them, but for steps and predictions of their own."""
    known: dict[tuple[str, str, float | None, int], Limits] = {}
    found = []
    for task in tasks:
        kind = job_kind(task.job.kind)
        key = task.case.id, task.job.kind, kind.predicted(task), kind.steps(task, measure)
        if key not in known:
            known[key] = limits_of(asked, task, measure)
        found.append(known[key])
    return found


def prepare_limit(asked: Deadlines, cases: Iterable[Case]) -> float:
    """Seconds in which all that *cases* need has to be built."""
    if asked.prepare is not None:
        return asked.prepare
    exact = {
        (case.workload.name, str(case.workload.options), case.seed, case.precision.compute): _parameters(case)
        for case in cases
        if case.initial_weights == "exact"
    }
    return math.ceil(_LEAST.prepare + _DRAWN_S * sum(exact.values()))


def _step_s(case: Case) -> float:
    """Seconds that a step of *case* takes where all is slow, with compiling."""
    parameters = _parameters(case)
    strategy: Strategy = registry.make("strategies", case.strategy)
    moved = [strategy.collectives(case, parameters) or {}, strategy.disk_traffic(case, parameters) or {}]
    moving = math.fsum(size for sizes in moved for size in sizes.values()) / _SLOWEST
    computing = _MARGIN * ((computed_s(case) or 0.0) + updated_s(case, parameters))
    is_compiled = case.compile != "none" or optimizers.kind_of(case.optimizer).is_compiled
    return math.ceil(computing + moving + (_COMPILED_S if is_compiled else 0.0))


def _build_s(case: Case) -> float:
    parameters = _parameters(case)
    strategy: Strategy = registry.make("strategies", case.strategy)
    states = strategy.model_states(case, parameters)
    kept = states["parameters"] / BYTES[case.precision.compute] if states else parameters
    written = math.fsum((strategy.disk_traffic(case, parameters) or {}).values())
    return math.ceil(_BUILT_S * kept + written / _SLOWEST)


def _parameters(case: Case) -> int:
    """Parameters by formula; 0 where the workload has none: then the least limits hold."""
    workload: Workload = registry.make("workloads", case.workload)
    return workload.parameters() or 0
