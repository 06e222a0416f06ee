"""Default time limits by the size of a case.

They depend on the work to compute, move and draw, from formulas alone. They end what hangs and nothing else,
so the rates below are a tenth of those of slow machines. They are the same on every call: nothing is timed
here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from distbench import optimizers
from distbench.core import registry
from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.core.job import PlannedTrial, job_kind
from distbench.core.measurement import MeasureConfig, SuiteLimits, TimeLimits
from distbench.engines.base import engine_of
from distbench.strategies.base import Strategy
from distbench.workloads.base import workload_of

_SAFETY_FACTOR = 10
# bytes per second of the slowest network and disk that anybody trains over: 1 Gbit/s
_MIN_BYTES_PER_S = 1e8
# seconds per element that a rank keeps in the build: docs/measuring.md has 51 ns where it took longest
_BUILD_S_PER_ELEMENT = 5e-7
# seconds per element of weights that the model's own constructor draws: docs/measuring.md has 25 ns
_INIT_S_PER_ELEMENT = 2.5e-7
# a rendezvous of many ranks
_JOIN_S_PER_RANK = 0.25
_COMPILE_S = 900.0
_MIN_LIMITS = TimeLimits()
# operations per second of a CPU core, and of a GPU, in fp32; the rates are those of docs/equivalence.md
_FLOPS_PER_S = {"cpu": 4e10, "cuda": 1e13}
# seconds per element of the parameters in each step, for updates, fingerprints, and the starts of trainings
_UPDATE_S_PER_ELEMENT = {"cpu": 20e-9, "cuda": 2e-9}


def trial_limits(suite_limits: SuiteLimits, task: PlannedTrial, measure: MeasureConfig) -> TimeLimits:
    """Limits of the trial of *task*: those given in *suite_limits*, and the others by its size.

    *measure* states how many steps a timed trial has.
    """
    case = task.case
    step, build = _step_s(case), _build_s(case)
    own = TimeLimits(
        prepare=_MIN_LIMITS.prepare,
        start=max(_MIN_LIMITS.start, _JOIN_S_PER_RANK * case.world_size),
        build=max(_MIN_LIMITS.build, build),
        step=max(_MIN_LIMITS.step, step),
    )
    kind = job_kind(task.job.kind)
    predicted, steps = kind.predicted_seconds(task) or 0.0, kind.sequential_steps(task, measure)
    own = own.overridden_by(suite_limits)
    trial = max(_MIN_LIMITS.trial, own.start + own.build + max(steps * step, _SAFETY_FACTOR * predicted))
    return own.overridden_by(SuiteLimits(trial=math.ceil(trial))).overridden_by(suite_limits)


def all_trial_limits(
    suite_limits: SuiteLimits, tasks: Iterable[PlannedTrial], measure: MeasureConfig
) -> list[TimeLimits]:
    """Limits of each of *tasks*.

    Trials of a case share them, except for steps and predictions of their own.
    """
    known: dict[tuple[str, str, float | None, int], TimeLimits] = {}
    found = []
    for task in tasks:
        kind = job_kind(task.job.kind)
        key = task.case.id, task.job.kind, kind.predicted_seconds(task), kind.sequential_steps(task, measure)
        if key not in known:
            known[key] = trial_limits(suite_limits, task, measure)
        found.append(known[key])
    return found


def prepare_limit(suite_limits: SuiteLimits, cases: Sequence[Case]) -> float:
    """Seconds in which everything that *cases* need has to be built."""
    if suite_limits.prepare is not None:
        return suite_limits.prepare
    exact = {
        (case.workload.name, str(case.workload.options), case.seed, case.precision.compute): _parameters(case)
        for case in cases
        if case.initial_weights == "exact"
    }
    built = {case.engine.name: engine_of(case).prepare_s for case in cases}
    return math.ceil(_MIN_LIMITS.prepare + sum(built.values()) + _INIT_S_PER_ELEMENT * sum(exact.values()))


def _step_s(case: Case) -> float:
    """Seconds that a step of *case* takes where everything is slow, with compiling."""
    parameters = _parameters(case)
    strategy: Strategy = registry.create_plugin("strategies", case.strategy)
    sent = [each.bytes for each in strategy.traffic(case, parameters) or ()]
    stored = (strategy.disk_traffic(case, parameters) or {}).values()
    moving = math.fsum((*sent, *stored)) / _MIN_BYTES_PER_S
    computing = _SAFETY_FACTOR * ((predicted_compute_s(case) or 0.0) + predicted_update_s(case, parameters))
    is_compiled = case.compile != "none" or optimizers.entry_of(case.optimizer).is_compiled
    return math.ceil(computing + moving + (_COMPILE_S if is_compiled else 0.0))


def _build_s(case: Case) -> float:
    parameters = _parameters(case)
    strategy: Strategy = registry.create_plugin("strategies", case.strategy)
    states = strategy.model_states(case, parameters)
    parameters_of_rank = states["parameters"] / DTYPE_BYTES[case.precision.compute] if states else parameters
    written = math.fsum((strategy.disk_traffic(case, parameters) or {}).values())
    return math.ceil(_BUILD_S_PER_ELEMENT * parameters_of_rank + written / _MIN_BYTES_PER_S)


def _parameters(case: Case) -> int:
    """Parameters by formula; 0 if the workload has none: then the minimum limits apply."""
    return workload_of(case).parameters() or 0


def predicted_compute_s(case: Case) -> float | None:
    """Seconds of forward and backward pass in a step of *case*; None if its workload has no formula."""
    if (flops := workload_of(case).flops_per_sample()) is None:
        return None
    devices = case.world_size * (case.threads if case.device == "cpu" else 1)
    return flops * case.batch.global_batch_size / _FLOPS_PER_S[case.device] / devices


def predicted_update_s(case: Case, parameters: int) -> float:
    """Seconds per step for the update of *parameters*, and in a check for their fingerprints."""
    return parameters * _UPDATE_S_PER_ELEMENT[case.device]
