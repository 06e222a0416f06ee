"""Rates of a machine as a probe measured them: seconds by samples, by bytes, and by operation."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeGuard

from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.core.units import format_count, join_words
from distbench.prediction.case_layout import row_length_problem
from distbench.prediction.recorded_layouts import LAYOUT_TABLE, recorded_layout
from distbench.record import Record, Status
from distbench.workloads.base import workload_of
from distbench.workloads.layouts import ModelLayout

PROBE = "probe"
"""Kind of job that measures rates."""
RATES_TABLE = "machine_rates"
"""Table of its records; the columns are in ``distbench.jobs.probe``."""
COMPUTATION_RATES = ("matmul", "copy")
"""Rates of a device that computes, whatever the model is: arithmetic, and memory."""


@dataclass(frozen=True)
class Duration:
    """Measured or interpolated time, with the spread of what it is from."""

    seconds: float
    relative_sd: float

    def times(self, factor: float) -> Duration:
        """Duration of *factor* repetitions, whose errors are the same."""
        return Duration(self.seconds * factor, self.relative_sd)


@dataclass(frozen=True)
class DurationCurve:
    """Durations by an amount of work: samples, or bytes."""

    points: Sequence[tuple[float, Duration]]
    """Amounts in ascending order, each with its duration; at least one."""

    def at(self, amount: float) -> Duration:
        """Duration of *amount*, on the line through the two nearest points.

        Outside of all points it is neither less than its proportional share of the nearest, nor more than
        that of all of it if the amount is smaller, and the other way round if it is larger.
        """
        near = self._nearest(amount)
        if len(near) == 1:
            ((known, duration),) = near
            return duration.times(amount / known) if amount > known else duration
        (x0, first), (x1, second) = near
        line = first.seconds + (second.seconds - first.seconds) * (amount - x0) / (x1 - x0)
        known, end = (x0, first) if amount < x0 else (x1, second)
        if not x0 <= amount <= x1:
            low, high = sorted((end.seconds, end.seconds * amount / known))
            line = min(max(line, low), high)
        return Duration(line, max(first.relative_sd, second.relative_sd))

    def _nearest(self, amount: float) -> Sequence[tuple[float, Duration]]:
        for pair in pairwise(self.points):
            if amount <= pair[1][0]:
                return pair
        return self.points[-2:]


@dataclass(frozen=True)
class ProbedGroup:
    """Ranks that communicate, as far as their number and place decide how fast."""

    ranks: int
    nodes: int = 1

    def __str__(self) -> str:
        return f"{self.ranks} ranks" + (f" on {self.nodes} nodes" if self.nodes > 1 else "")


@dataclass(frozen=True)
class ProbedRates:
    """Rates for the cases of one workload on one number of devices."""

    passes: DurationCurve
    """Forward and backward pass of the whole model, all ranks busy, by samples."""
    update: DurationCurve
    """Optimizer update, by bytes of parameters."""
    alone: Mapping[tuple[str, ProbedGroup], DurationCurve]
    """Operation and group -> collective with nothing else running, by bytes of the full array."""
    in_step: Mapping[tuple[str, ProbedGroup], DurationCurve]
    """The same between the layers of a model: what it adds to a step."""
    computation: Mapping[str, DurationCurve] = field(default_factory=dict)
    """``matmul`` and ``copy``, as far as they were measured, by bytes: no code of a model enters them."""
    layout: ModelLayout | str | None = None
    """Model of a workload without formulas, as the ranks read it, or the reason why they could not."""

    def group(self, mesh: Mapping[str, int], dimension: str | None, world_size: int) -> ProbedGroup:
        """Group of a rank over a *dimension* of the *mesh*, outermost first; None: all *world_size* ranks."""
        names = [*mesh]
        inner = names[names.index(dimension) :] if dimension in names else []
        ranks = mesh[inner[0]] if inner else world_size
        span = math.prod([mesh[name] for name in inner]) if inner else world_size
        # of a group whose ranks lie apart, each may be on a node of its own
        per_node = self.ranks_per_node or world_size
        nodes = min(ranks, -(-span // per_node))
        return ProbedGroup(ranks, nodes)

    @property
    def ranks_per_node(self) -> int | None:
        """Ranks of a node; None: the probe ran on one."""
        sizes = {group for _, group in self.alone}
        if all(group.nodes == 1 for group in sizes):
            return None
        return max((group.ranks for group in sizes if group.nodes == 1), default=1)

    def duration_between_layers(self, op: str, group: ProbedGroup, amount: float) -> Duration | None:
        """*op* on *amount* bytes in a *group* between layers; None: nothing like it was measured.

        An operation that was only measured alone costs what it takes alone, and what others of that group
        take longer between layers, at the smallest size: the cost of a synchronization of the ranks. One
        that was measured at a single size costs what itself takes longer there.
        """
        key = op, group
        curve, alone = self.in_step.get(key), self.alone.get(key)
        if curve and len(curve.points) > 1:
            return curve.at(amount)
        like = [key] if curve else [each for each in self.in_step if each[1] == group]
        synchronizations = [
            Duration(duration.seconds - self.alone[each].at(smallest).seconds, duration.relative_sd)
            for each in like
            for smallest, duration in self.in_step[each].points[:1]
            if each in self.alone
        ]
        if alone is None or not synchronizations:
            return None
        synchronization_seconds = statistics.median(each.seconds for each in synchronizations)
        once = alone.at(amount)
        return Duration(
            once.seconds + max(0.0, synchronization_seconds),
            max(each.relative_sd for each in (once, *synchronizations)),
        )

    @classmethod
    def from_rows(
        cls, rows: Iterable[Mapping[str, Any]], *, of_one_repetition: bool = False
    ) -> ProbedRates | str:
        """Rates in the *rows* of a probe; or the reason why they are not enough.

        Rows with numbers that no measurement has do not count. Spreads are those of medians, or of a single
        repetition.
        """
        found: dict[tuple[str, str, ProbedGroup], list[tuple[float, Duration]]] = defaultdict(list)
        for row in rows:
            rate = str(row.get("rate"))
            amount: Any = row.get("samples" if rate == "forward_backward" else "bytes")
            spread = row.get("relative_sd")
            positive = (amount, row.get("seconds"), row.get("repetitions"))
            if not row.get("reason") and all(map(_is_positive, positive)) and _is_magnitude(spread):
                group = ProbedGroup(row.get("group_size") or 1, row.get("nodes") or 1)
                key = rate, row.get("op") or "", group
                # the standard deviation of a median is sqrt(pi / 2) times that of a mean
                sd = spread if of_one_repetition else spread * math.sqrt(math.pi / 2 / row["repetitions"])
                found[key].append((float(amount), Duration(row["seconds"], sd)))
        curves = {key: DurationCurve(sorted(points, key=_amount)) for key, points in found.items()}
        by_rate: dict[str, dict[tuple[str, ProbedGroup], DurationCurve]] = defaultdict(dict)
        for (rate, op, group), curve in curves.items():
            by_rate[rate][op, group] = curve
        for needed in ("forward_backward", "update"):
            if not by_rate[needed]:
                return f"the probe did not measure {needed}"
        (passes,), (update,) = (tuple(by_rate[name].values())[:1] for name in ("forward_backward", "update"))
        computation = {name: curve for name in COMPUTATION_RATES for curve in by_rate[name].values()}
        return cls(passes, update, by_rate["collective"], by_rate["collective_in_step"], computation)


def _is_magnitude(value: object) -> TypeGuard[float]:
    """True if *value* is a finite number, and not negative."""
    return isinstance(value, int | float) and 0 <= value < math.inf


def _is_positive(value: object) -> bool:
    return _is_magnitude(value) and value > 0


def _amount(point: tuple[float, Duration]) -> float:
    return point[0]


def probed_rates(
    case: Case, records: Iterable[Record], machine: Machine | None = None, *, of_one_repetition: bool = False
) -> ProbedRates | str:
    """Rates for *case* among the *records* of a run; or the reason why there are none.

    The newest probe counts that was made for the case, or else for one with the same conditions. *machine* is
    where the case would run; None: where the probe did. Spreads are as in ``ProbedRates.from_rows``.
    """
    if problem := row_length_problem(case):
        return problem
    ranks = "one device" if case.world_size == 1 else f"{case.world_size} devices"
    probes = sorted((each for each in records if each.job.kind == PROBE), key=lambda each: each.started)
    on_same_devices = [record for record in probes if _place(record.case) == _place(case)]
    if not on_same_devices:
        return f"no probe on {ranks}"
    own = [record for record in on_same_devices if _is_made_for(record, case)]
    conditions = rate_conditions(case)
    same = [
        each
        for each in on_same_devices
        if _is_made_for(each, case) or rate_conditions(each.case) == conditions
    ]
    if not same:
        probe_conditions = rate_conditions(on_same_devices[-1].case)
        other = join_words([name for name in conditions if conditions[name] != probe_conditions[name]])
        return f"the probe on {ranks} has another {other}"
    measured = [record for record in (*same, *own) if record.status is Status.MEASURED]
    if not measured:
        return f"the probe on {ranks} ended as {same[-1].status}"
    nodes, spanned = node_count(measured[-1]), _nodes_spanned(case, machine)
    if spanned > nodes:
        return f"the probe on {ranks} ran on {format_count(nodes, 'node')}, and the case needs {spanned}"
    rows = measured[-1].tables.get(RATES_TABLE, [])
    rates = ProbedRates.from_rows(rows, of_one_repetition=of_one_repetition)
    if isinstance(rates, str):
        return rates
    return replace(rates, layout=recorded_layout(measured[-1].tables.get(LAYOUT_TABLE, [])))


def _is_made_for(record: Record, case: Case) -> bool:
    # the options are those of a job, which no module down here knows
    return case.id in getattr(record.job.options, "cases", ())


def node_count(record: Record) -> int:
    """Nodes that the ranks of *record* ran on."""
    return max(1, len(record.nodes))


def _nodes_spanned(case: Case, machine: Machine | None) -> int:
    """Nodes of *machine* that the ranks of *case* need; 1 if it is unknown."""
    if machine is None:
        return 1
    per_node = max(1, machine.devices_per_node)
    return min(machine.nodes, -(-case.world_size // per_node))


def _place(case: Case) -> tuple[object, ...]:
    return case.device, case.world_size


def rates_key(case: Case) -> str:
    """Text that is equal for two cases with the same rates."""
    return repr((_place(case), rate_conditions(case)))


def rate_conditions(case: Case) -> dict[str, object]:
    """Conditions that decide the rates of *case* on the same devices, by the key of a suite."""
    return {
        # with the defaults of options that are left out
        "workload": workload_of(case),
        "data": row_length_problem(case),
        "precision": case.precision,
        "activation_checkpointing": case.activation_checkpointing,
        "compile": case.compile,
        # threads of a process that drives a GPU compute nothing
        "threads": case.threads if case.device == "cpu" else None,
        "environment": case.environment,
        "env": sorted(case.env.items()),
        "optimizer": (case.optimizer.name, case.optimizer.kernel),
        "optimizer.clip_grad_norm": case.optimizer.clip_grad_norm is not None,
    }
