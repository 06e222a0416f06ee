"""Predictions from data sheets for machines with other memory, links or numbers of nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from distbench.core import registry
from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.plan.requirements import missing_requirement
from distbench.prediction.cases import CasePrediction, predict_from_data_sheet
from distbench.prediction.hardware import hardware_of
from distbench.strategies.base import Strategy
from distbench.suite.batch import BatchConfig, IndivisibleBatchError
from distbench.workloads.base import workload_of

VariedFigure = Literal["memory", "inside", "between", "nodes"]
"""Memory of a GPU, bandwidth of a GPU inside its node and between nodes, or the number of nodes."""

MEMORY_SIZES = tuple(size * 2**30 for size in (40, 80, 141))
"""Bytes of memory of a GPU: A100, its larger version or H100, and H200."""
_FACTORS = (0.5, 2)


@dataclass(frozen=True)
class Variation:
    """A machine that differs in one figure, and what a case would be there."""

    figure: VariedFigure
    value: float
    """Bytes, bytes/s, or nodes."""
    case: Case
    """On other numbers of nodes the same samples of a step are divided over more or fewer devices."""
    prediction: CasePrediction | str
    """Its prediction, or the reason why it can't run there."""
    lacks_memory: bool = False
    """True: its model states do not fit, and that is the only reason."""

    def change(self, base: CasePrediction) -> float | None:
        """Ratio of its tokens/s to those of *base*, less 1; None: one of them is unknown."""
        now = None if isinstance(self.prediction, str) else self.prediction.tokens_per_s
        before = base.tokens_per_s
        return now.value / before.value - 1 if now and before else None


def variations(case: Case, machine: Machine) -> Iterator[Variation]:
    """Yield predictions of *case* on machines that differ from *machine* in one relevant figure.

    Links are relevant to no case whose model states do not fit.
    """
    for size in MEMORY_SIZES:
        if size != machine.device_memory:
            yield _predicted("memory", size, case, replace(machine, device_memory=size))
    per_node = machine.devices_per_node
    hardware = hardware_of(machine)
    if not isinstance(hardware, str) and _problem(case, machine) is None:
        if hardware.inside and min(case.world_size, hardware.gpus_per_node) > 1:
            for rate in (hardware.inside * factor for factor in _FACTORS):
                yield _predicted("inside", rate, case, replace(machine, inside=rate))
        if hardware.between and case.world_size > hardware.gpus_per_node:
            for rate in (hardware.between * factor for factor in _FACTORS):
                yield _predicted("between", rate, case, replace(machine, between=rate))
    nodes, rest = divmod(case.world_size, per_node)
    if rest:
        return
    for number in [*([nodes // 2] if nodes % 2 == 0 else []), 2 * nodes]:
        yield _on_nodes(case, replace(machine, nodes=number, devices=number * per_node))


def _predicted(figure: VariedFigure, value: float, case: Case, machine: Machine) -> Variation:
    if (problem := _problem(case, machine)) is None:
        return Variation(figure, value, case, predict_from_data_sheet(case, machine))
    return Variation(figure, value, case, problem, lacks_only_memory(case, machine, problem))


def lacks_only_memory(case: Case, machine: Machine, problem: str) -> bool:
    """True if *problem* of *case* on *machine* is that its model states do not fit, and there is no other."""
    own = _problem(case, machine)
    # suggestions may follow it
    is_own = own is not None and problem.startswith(own)
    return is_own and _problem(case, replace(machine, device_memory=None)) is None


def prediction_with_enough_memory(case: Case, machine: Machine) -> CasePrediction:
    """Prediction of *case*, whose model states do not fit on *machine*, if it had the memory."""
    return replace(predict_from_data_sheet(case, machine), fits="no")


def _problem(case: Case, machine: Machine) -> str | None:
    strategy: Strategy = registry.create_plugin("strategies", case.strategy)
    return missing_requirement(case, strategy, workload_of(case), machine)


def _on_nodes(case: Case, machine: Machine) -> Variation:
    """*case* on all devices of *machine*, with the same samples of a step in the same micro-batches."""
    size, batch = machine.devices, case.batch
    strategy: Strategy = registry.create_plugin("strategies", case.strategy)
    resized = replace(case, world_size=size)
    try:
        batch_config = BatchConfig(
            global_batch_size=batch.global_batch_size, micro_batch_size=batch.micro_batch_size
        )
        resized = replace(resized, batch=batch_config.divide(size, strategy.data_parallel_size(size)))
    except IndivisibleBatchError as error:
        return Variation("nodes", machine.nodes, resized, error.reason)
    return _predicted("nodes", machine.nodes, resized, machine)


def best_cases(found: list[CasePrediction]) -> list[CasePrediction]:
    """The case of *found* with the most tokens/s on each number of devices, of those that may fit."""
    best: dict[int, CasePrediction] = {}
    for each in found:
        if each.fits == "no" or each.tokens_per_s is None:
            continue
        other = best.get(each.case.world_size)
        if other is None or each.tokens_per_s.value > _tokens(other):
            best[each.case.world_size] = each
    return [best[size] for size in sorted(best)]


def _tokens(found: CasePrediction) -> float:
    return found.tokens_per_s.value if found.tokens_per_s else -math.inf
