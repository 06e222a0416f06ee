"""Measured cases of a run on numbers of devices that nobody has measured."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from distbench.analysis.case_names import short_names
from distbench.analysis.case_summary import THROUGHPUT, CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.analysis.run_probes import RunProbes
from distbench.analysis.scaling import case_families
from distbench.core import registry
from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.core.units import format_count
from distbench.prediction import PredictedValue, fits, predict_memory
from distbench.prediction.extrapolation import (
    MAX_HALF_LOG_WIDTH,
    MAX_INTERVAL_FACTOR,
    Residual,
    StepRatio,
    step_ratio,
)
from distbench.prediction.memory_fit import MemoryFit
from distbench.prediction.world_size_change import Scaling, resized_case
from distbench.record import Record

STEP = "step_s"
"""Column with the length of a step."""
_RANGES = {STEP: (1e-9, 1e9), THROUGHPUT: (1e-9, 1e18)}
"""Columns with wide bounds of what a machine may do: numbers of a damaged record are outside."""


@dataclass(frozen=True)
class ExtrapolatedPoint:
    """A case on a number of devices that it was not measured on."""

    case: Case
    ratio: StepRatio
    """Its step over the measured one."""
    step_s: PredictedValue
    tokens_per_s: PredictedValue
    """Of all devices."""
    efficiency: PredictedValue
    """Tokens/s of a device over those of a device of the anchor."""
    fits: MemoryFit | None
    """Whether a rank fits into the memory of its device; None: no formula has its memory."""


@dataclass(frozen=True)
class ExtrapolatedSeries:
    """A case on the numbers of devices that were measured, and on others."""

    name: str
    scaling: Scaling
    measured: tuple[CaseSummary, ...]
    """The case by numbers of devices; the last one is the anchor of the extrapolation."""
    points: tuple[ExtrapolatedPoint, ...]
    refusals: Mapping[int, str]
    """Devices -> reason why the case is not extrapolated to them."""
    residual: Residual | None = None
    """Error of the same extrapolation from the fewest measured devices to the most; None: it is unknown."""

    @property
    def anchor(self) -> CaseSummary:
        """The case on the most devices that it was measured on."""
        return self.measured[-1]

    def efficiency(self, row: CaseSummary) -> float:
        """Tokens/s of a device of *row* over those of a device of the anchor."""
        return _rate(row) / row.case.world_size / self.tokens_per_s_of_device

    @property
    def tokens_per_s_of_device(self) -> float:
        """Tokens/s of a device of the anchor."""
        return _rate(self.anchor) / self.anchor.case.world_size


@dataclass(frozen=True)
class _Basis:
    """Machines and probes that steps are predicted from."""

    machine: Machine
    """Nodes of the measured steps."""
    on: Machine
    """Nodes of the others."""
    probes: Sequence[Record]


def extrapolate_run(
    run: RunAnalysis,
    devices: Sequence[int],
    machine: Machine,
    *,
    on: Machine | None = None,
    probes: RunProbes | None = None,
    scaling: Scaling | None = None,
) -> list[ExtrapolatedSeries]:
    """Series of each measured case of *run* to numbers of *devices*.

    Args:
        machine: Nodes like those that the run was measured on.
        on: Nodes that it is extrapolated to; None: *machine*.
        probes: Probes on the devices of the run; None: its own.
        scaling: What grows with the devices; None: as the run has it.
    """
    usable = [row for row in run.cases if not unusable_reason(row)]
    rows = {row.case.id: row for row in usable}
    basis = _Basis(machine, on or machine, (probes or RunProbes.of(run)).records)
    found = []
    for family in case_families([row.case for row in usable]):
        most = max(case.world_size for case in family)
        for case in family:
            if case.world_size == most:
                kind = scaling or _scaling(case, family, run.info.suite)
                measured = [rows[each.id] for each in _same_work(case, family, kind)]
                found.append(_series(measured, kind, devices, basis))
    names = short_names([_without_devices(series.anchor.case) for series in found])
    return [replace(series, name=names[series.anchor.case.id]) for series in found]


def unusable_reason(row: CaseSummary) -> str:
    """Reason why nothing is extrapolated from *row*; empty: its step is measured."""
    if not row.measured:
        return f"{row.status}: {row.reason}" if row.reason else row.status
    if row.degraded:
        return "measured on a noisy machine; measure it again with distbench run SUITE --repeat-noisy 3"
    if row.differs:
        return "it differs from its reference"
    if not (row.positive_trials(THROUGHPUT) and row.positive_trials(STEP)):
        return row.absence_reasons.get(STEP) or "its trials have no length of a step"
    return _range_reason(row) or _plugin_reason(row.case)


def _range_reason(row: CaseSummary) -> str:
    """Reason why a number of *row* is none of a measurement; empty: they may all be."""
    for column, (low, high) in _RANGES.items():
        for value in row.values[column].trials:
            if not low <= value <= high:
                return f"its {column} = {value:g} is outside {low:g} to {high:g}: the record is damaged"
    return ""


def _plugin_reason(case: Case) -> str:
    """Reason why the plug-ins of *case* are not used: reading a run runs no code of others."""
    for kind, choice in (("strategies", case.strategy), ("workloads", case.workload), ("data", case.data)):
        if registry.decode_built_in(kind, choice) is None:
            return (
                f"{choice.name} is a plug-in that is not built in, or its options are from another version "
                "of distbench"
            )
    return ""


def _scaling(case: Case, family: Sequence[Case], suite: Mapping[str, object]) -> Scaling:
    """Kind of scaling of *case*: by its *family* on fewer devices, or else by the batch of its *suite*."""
    others = [each.batch.global_batch_size for each in family if each.world_size < case.world_size]
    if others:
        return "strong" if case.batch.global_batch_size in others else "weak"
    batch = suite.get("batch")
    return "strong" if isinstance(batch, Mapping) and batch.get("global_batch_size") else "weak"


def _same_work(case: Case, family: Sequence[Case], scaling: Scaling) -> list[Case]:
    """*case* after those of its *family* on fewer devices that are it by *scaling*."""

    def fixed(each: Case) -> float:
        samples = each.batch.global_batch_size
        return samples if scaling == "strong" else samples / each.world_size

    found: dict[int, Case] = {}
    for each in sorted(family, key=lambda each: each.batch.micro_batch_size != case.batch.micro_batch_size):
        if each.world_size < case.world_size and fixed(each) == fixed(case):
            found.setdefault(each.world_size, each)
    return [*(found[size] for size in sorted(found)), case]


def _series(
    measured: Sequence[CaseSummary],
    scaling: Scaling,
    devices: Sequence[int],
    basis: _Basis,
) -> ExtrapolatedSeries:
    residual = _residual(measured, basis)
    points, refusals = [], {}
    for count in devices:
        point = _point(measured[-1], count, scaling, basis, residual)
        if isinstance(point, str):
            refusals[count] = point
        else:
            points.append(point)
    return ExtrapolatedSeries("", scaling, tuple(measured), tuple(points), refusals, residual)


def _without_devices(case: Case) -> Case:
    return replace(case, name=re.sub(r"/ws\d+", "", case.name))


def _residual(measured: Sequence[CaseSummary], basis: _Basis) -> Residual | None:
    fewest, most = measured[0], measured[-1]
    if fewest is most:
        return None
    ratio = step_ratio(fewest.case, most.case, basis.machine, basis.probes)
    if isinstance(ratio, str):
        return None
    # of steps that are too far apart, nothing but the logarithm is a number
    logs = [math.log(row.values[STEP].value) for row in (fewest, most)]
    log_ratio = logs[0] + math.log(ratio.value) - logs[1]
    return Residual(fewest.case.world_size, most.case.world_size, log_ratio)


def _point(
    anchor: CaseSummary,
    devices: int,
    scaling: Scaling,
    basis: _Basis,
    residual: Residual | None,
) -> ExtrapolatedPoint | str:
    """*anchor* on *devices* devices, or the reason why it is not extrapolated to them."""
    base = anchor.case
    if devices <= base.world_size:
        return f"it was measured on {base.world_size}; --to takes more devices than that"
    if base.device == "cuda" and devices > basis.on.devices:
        return f"the machine of --on has {format_count(basis.on.devices, 'GPU')}"
    target = resized_case(base, devices, scaling, basis.on)
    if isinstance(target, str):
        return target
    ratio = step_ratio(base, target, basis.machine, basis.probes, basis.on)
    if isinstance(ratio, str):
        return ratio
    width = ratio.half_log_width
    if residual is not None:
        width = max(width, residual.half_log_width(ratio.doublings))
    width = math.hypot(width, _half_log_width(anchor))
    if not width <= MAX_HALF_LOG_WIDTH:
        return _width_problem(residual, ratio.doublings)
    spread = math.exp(width)

    def scaled(measured: float, by: float) -> PredictedValue:
        return PredictedValue(measured * by, measured * by / spread, measured * by * spread)

    step = scaled(anchor.values[STEP].value, ratio.value)
    samples = target.batch.global_batch_size / base.batch.global_batch_size
    speed = scaled(_rate(anchor), samples / ratio.value)
    efficiency = scaled(1.0, samples / ratio.value * base.world_size / devices)
    memory = predict_memory(target)
    room = None if isinstance(memory, str) else fits(memory, target, basis.on)
    return ExtrapolatedPoint(target, ratio, step, speed, efficiency, room)


def _width_problem(residual: Residual | None, doublings: float) -> str:
    """Reason why an interval says nothing: an extrapolation between measured steps failed, or else a rate."""
    wide = f"its interval is wider than a factor of {MAX_INTERVAL_FACTOR} on each side"
    if residual is None or residual.half_log_width(doublings) <= MAX_HALF_LOG_WIDTH:
        return f"{wide}, as the rates or the trials are that uncertain"
    return (
        f"{wide}, as the step on {residual.to_devices} devices, extrapolated from {residual.from_devices}, "
        "is so far off the measured one"
    )


def _rate(row: CaseSummary) -> float:
    return row.values[THROUGHPUT].value


def _half_log_width(row: CaseSummary) -> float:
    """Half of the interval of the measured throughput, as a logarithm; 0: it is unknown."""
    interval = row.values[THROUGHPUT].interval
    return (interval.half_log_width if interval else None) or 0.0
