"""Predict the cost of a check, and reduce its work to fit a time limit.

The prediction decides how much work is checked, so it must always be the same: nothing is timed here.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.core import registry
from distbench.core.case import Case, PluginChoice
from distbench.core.machine import Machine
from distbench.data.base import DataSource
from distbench.plan.references import reference_case
from distbench.plan.time_limits import predicted_compute_s, predicted_update_s
from distbench.strategies.base import Strategy
from distbench.workloads.base import Workload

# a training in fp64 takes about two of them
_FP64 = 2
# the reference unchanged, and once more
_REPEATS = 2


@dataclass(frozen=True)
class ReducedWork:
    """A smaller workload on which a case is checked."""

    choice: PluginChoice
    text: str
    """Description: ``seq_len 128, depth 2: 53 of 124 million parameters``."""


def training_seconds(case: Case, steps: int, perturbed: int | None = None) -> float | None:
    """Predicted seconds of a training of *case*; None if its workload has no formulas.

    With *perturbed*, the seconds of a reference: in fp64, unchanged, once more, and *perturbed* trainings.
    """
    workload: Workload = registry.create_plugin("workloads", case.workload)
    parameters, computed = workload.parameters(), predicted_compute_s(case)
    if parameters is None or computed is None:
        return None
    trainings = 1 if perturbed is None else perturbed + _FP64 + _REPEATS
    return trainings * steps * (computed + predicted_update_s(case, parameters))


def reduce_work(
    case: Case, arms: Sequence[Case], machine: Machine, steps: int, perturbed: int, limit_s: float
) -> ReducedWork | None:
    """Find the largest work on which *case* can be checked, with its references, in *limit_s* seconds.

    *arms* are the trainings of the case. If no work is predicted to fit, use the smallest possible.
    None: the full work, because it fits, has unknown cost, or is the smallest.
    """
    fits, found = False, case.workload
    for found in itertools.chain([case.workload], _reduced_workloads(case, arms, machine)):
        seconds = [
            _seconds_with_reference(dataclasses.replace(arm, workload=found), steps, perturbed)
            for arm in arms
        ]
        fits = None in seconds or sum(filter(None, seconds)) <= limit_s
        if fits:
            break
    if found == case.workload:
        return None
    return ReducedWork(found, _text(case.workload, found) + ("" if fits else " (the smallest possible)"))


def _seconds_with_reference(arm: Case, steps: int, perturbed: int) -> float | None:
    own, reference = training_seconds(arm, steps), training_seconds(reference_case(arm), steps, perturbed)
    return None if own is None or reference is None else own + reference


def _reduced_workloads(case: Case, arms: Sequence[Case], machine: Machine) -> Iterator[PluginChoice]:
    """Yield smaller and smaller workloads that the data can feed and the strategy can divide."""
    workload: Workload = registry.create_plugin("workloads", case.workload)
    data: DataSource = registry.create_plugin("data", case.data)
    trained = [arm for arm in arms if _problem(arm, machine) is None]

    def less(changes: Mapping[str, Any]) -> PluginChoice:
        return PluginChoice(case.workload.name, {**case.workload.options, **changes})

    def is_possible(changes: Mapping[str, Any]) -> bool:
        smaller = [dataclasses.replace(arm, workload=less(changes)) for arm in trained]
        is_fed = data.problem(registry.create_plugin("workloads", less(changes)).shape) is None
        return is_fed and not any(_problem(arm, machine) for arm in smaller)

    taken: dict[str, Any] = {}
    for changes in workload.reduced_options():
        before = taken
        if is_possible(changes):
            taken = {**changes}
        else:
            # rows that can't be divided any shorter may still go through fewer layers
            for key, value in changes.items():
                tried = {**taken, key: value}
                if is_possible(tried):
                    taken = tried
        if taken != before:
            yield less(taken)


def _problem(arm: Case, machine: Machine) -> str | None:
    strategy: Strategy = registry.create_plugin("strategies", arm.strategy)
    return strategy.problem(arm, machine.for_case(arm))


def _text(full: PluginChoice, less: PluginChoice) -> str:
    changed = {key: value for key, value in less.options.items() if full.options.get(key) != value}
    what = ", ".join(f"{key} {value:,}" for key, value in changed.items())
    sizes = [registry.create_plugin("workloads", choice).parameters() / 1e6 for choice in (less, full)]
    some, all_ = (f"{size:,.0f}" if size >= 100 else f"{size:.3g}" for size in sizes)
    return f"{what}: {some} of {all_} million parameters"
