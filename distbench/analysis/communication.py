"""Break a step's communication down by collective and compare it with theory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.record_cache import cached_by_record
from distbench.analysis.settings import strategy_description
from distbench.core.dtypes import DTYPE_BYTES
from distbench.core.grouping import group_by, group_pairs
from distbench.core.serialization import finite_number
from distbench.core.units import format_bytes
from distbench.metrics.communication.traffic import SCALAR_BYTES, bus_factor
from distbench.record import Record
from distbench.strategies.description import ExcessCause

UNEXPLAINED_TOLERANCE = 0.01
"""Share of the expected volume that may remain without a known cause."""


@dataclass(frozen=True)
class CollectiveTraffic:
    """One kind of collective in one step of a rank; means over ranks and profiled steps."""

    op: str
    """Operation that was requested."""
    executed_op: str
    """Operation that the backend ran for it; empty if the trace does not show it."""
    group_size: int
    nodes: int
    """Number of nodes that its process group spans; 1: it stays inside a node."""
    dtype: str
    dimension: str | None
    """Dimension of the device mesh that its process group is over; None if the record does not say."""
    calls: float
    bytes: float
    """Payload in bytes: full arrays, counted as in nccl-tests."""
    wire_bytes: float | None
    """Bytes that a rank sends, by the algorithm of the executed operation."""
    transfer_s: float | None
    wait_s: float | None
    exposed_s: float | None

    @property
    def algbw(self) -> float | None:
        """Algorithm bandwidth in bytes per second: payload over transfer time (nccl-tests)."""
        return self.bytes / self.transfer_s if self.transfer_s else None

    @property
    def busbw(self) -> float | None:
        """Bus bandwidth in bytes per second: ``algbw`` times the factor of the operation (nccl-tests)."""
        factor = bus_factor(self.op, self.group_size)
        return None if self.algbw is None or factor is None else self.algbw * factor


@cached_by_record
def collective_traffic(record: Record) -> list[CollectiveTraffic]:
    """Traffic of one trial by operation, group size, nodes, dtype and dimension, largest first."""
    kinds, steps = group_by(multi_rank_rows(record), _traffic_key), step_count(record)
    unsorted = [_traffic(kind, same, steps) for kind, same in kinds.items()]
    return sorted(unsorted, key=lambda kind: -kind.bytes)


def _traffic_key(row: Mapping[str, Any]) -> tuple[str, str, int, int, str, str | None]:
    ran, dimension = row.get("ran") or "", row.get("dimension")
    return row["op"], ran, row["group_size"], group_node_count(row), row["dtype"], dimension


def group_node_count(row: Mapping[str, Any]) -> int:
    """Number of nodes that the group of the collective in *row* is on."""
    # earlier records lack it; all of their ranks were on one node
    return row.get("nodes") or 1


def _traffic(
    kind: tuple[str, str, int, int, str, str | None], rows: Sequence[dict[str, Any]], steps: int
) -> CollectiveTraffic:
    def mean(column: str) -> float | None:
        values = [row.get(column) for row in rows]
        known = [value for value in values if value is not None]
        return math.fsum(known) / steps if len(known) == len(values) else None

    means = map(mean, ("wire_bytes", "transfer_s", "wait_s", "exposed_s"))
    return CollectiveTraffic(*kind, len(rows) / steps, mean("bytes") or 0.0, *means)


@dataclass(frozen=True)
class MessageBandwidth:
    """Bandwidth of collectives of one kind and message size in a trial."""

    op: str
    group_size: int
    nodes: int
    """Number of nodes that the group spans."""
    bytes: float
    """Payload of one message, in bytes."""
    busbw: float
    """Median over calls, ranks and profiled steps, in bytes per second."""
    calls: int


def message_bandwidths(record: Record) -> list[MessageBandwidth]:
    """Bus bandwidth by message size: payload over transfer time, times nccl-tests' factor."""
    found: dict[tuple[str, int, int, float], list[float]] = {}
    for row in multi_rank_rows(record):
        factor, seconds = bus_factor(row["op"], row["group_size"]), row.get("transfer_s")
        if factor and seconds and row["bytes"]:
            reached = row["bytes"] / seconds * factor
            kind = (row["op"], row["group_size"], group_node_count(row), row["bytes"])
            found.setdefault(kind, []).append(reached)
    return [MessageBandwidth(*key, statistics.median(values), len(values)) for key, values in found.items()]


def multi_rank_rows(record: Record) -> list[dict[str, Any]]:
    """Rows of all collectives except those of single-rank groups, which move nothing."""
    return [row for row in _rows_with_position(record) if row["group_size"] > 1]


@cached_by_record
def step_count(record: Record) -> int:
    """Number of rank steps with known collectives, including steps in which nothing moves.

    The rows alone don't show these: local steps of 0/1 Adam have no row at all.
    """
    rows = list(_rows_with_position(record))
    # the rows of a profiled step replace those of the counted one
    is_profiled = any(row.get("seconds") is not None for row in rows)
    of_ranks = record.samples.get("profile_step_s" if is_profiled else "comm_calls", [])
    return sum(map(len, of_ranks)) or len({(row["rank"], row["step"]) for row in rows})


def _rows_with_position(record: Record) -> Iterator[dict[str, Any]]:
    # records of format 1 may hold sums instead of single collectives; those have no position in a step
    return (row for row in record.tables.get("collectives", []) if "place" in row)


@dataclass(frozen=True)
class VolumeCause:
    """Cause of a difference between volume and theory."""

    text: str
    bytes: float
    """Signed contribution to the expected volume."""


@dataclass(frozen=True)
class CommunicationVolume:
    """Payload of a rank's step by operation, measured and expected, with the causes of differences."""

    measured: dict[str, float]
    theory: dict[str, float]
    causes: tuple[VolumeCause, ...]
    unexplained_by_op: dict[str, float]
    """Operation -> bytes without a known cause, signed."""

    @property
    def unexplained_share(self) -> float:
        """Share of the expected volume that has no known cause."""
        whole = sum(self.theory.values()) or 1.0
        return sum(abs(size) for size in self.unexplained_by_op.values()) / whole

    @property
    def all_reduces_gradients(self) -> bool:
        """True if gradients were all-reduced although theory reduce-scatters them."""
        return "reduce_scatter" in self.theory and "reduce_scatter" not in self.measured


@cached_by_record
def compare_volume(record: Record) -> CommunicationVolume | None:
    """Compare the volume of one trial with theory; None if its strategy has no communication model."""
    if "comm_bytes_theory" not in record.values:
        return None
    return _VolumeReconciler(record).reconcile()


def volume_sentence(record: Record) -> str:
    """Sentence that compares the volume of a trial with theory; empty if nothing moves."""
    moved = compare_volume(record)
    if moved is None:
        return f"no theory to compare with: {record.absent.get('comm_bytes_theory', 'not measured')}."
    if not moved.theory and not moved.measured:
        return ""
    parts = " and ".join(_theory_parts(record))
    theory = f"theory: {format_bytes(sum(moved.theory.values()))}" + (f" ({parts})" if parts else "")
    clauses = [f"payload {format_bytes(sum(moved.measured.values()))}, {theory}"]
    clauses += [cause.text for cause in moved.causes]
    if moved.unexplained_share > UNEXPLAINED_TOLERANCE:
        left = (
            f"{'+' if size > 0 else '−'}{format_bytes(abs(size))} {op}"
            for op, size in moved.unexplained_by_op.items()
        )
        clauses.append(f"no known cause for {', '.join(left)}")
    return "; ".join(clauses) + "."


def _theory_parts(record: Record) -> list[str]:
    """Expected bytes by operation, and by mesh dimension if there are several."""
    rows = record.tables.get("collectives_theory", [])
    is_mesh = len({row.get("dimension") for row in rows}) > 1
    over = [f" over {row['dimension']}" if is_mesh and row.get("dimension") else "" for row in rows]
    return [f"{row['op']}{where} {format_bytes(row['bytes'])}" for row, where in zip(rows, over, strict=True)]


class _VolumeReconciler:
    """Assign the difference between measurement and theory to known causes, one after another."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._rows = multi_rank_rows(record)
        self._steps = step_count(record) or 1
        theory = record.tables.get("collectives_theory", [])
        sizes = group_pairs((row["op"], row["bytes"]) for row in theory)
        self._theory = {op: sum(same) for op, same in sizes.items()}
        self._measured = self._sum_by_op()
        every = {**self._theory, **self._measured}
        self._left = {op: self._measured.get(op, 0.0) - self._theory.get(op, 0.0) for op in every}
        self._causes: list[VolumeCause] = []

    def reconcile(self) -> CommunicationVolume:
        self._attribute_all_reduced_gradients()
        self._attribute_resident_parameters()
        self._attribute_early_end()
        self._attribute_scalars()
        self._attribute_known_deviations()
        left = {op: size for op, size in self._left.items() if size}
        return CommunicationVolume(self._measured, self._theory, tuple(self._causes), left)

    def _attribute(self, op: str, size: float, text: str) -> None:
        self._left[op] -= size
        self._causes.append(VolumeCause(text, size))

    def _attribute_all_reduced_gradients(self) -> None:
        extra = self._left.get("all_reduce", 0.0)
        if "reduce_scatter" not in self._theory or "reduce_scatter" in self._measured or extra <= 0:
            return
        moved = min(self._theory["reduce_scatter"], extra)
        self._left["all_reduce"] -= moved
        text = "of gradients were all-reduced, not reduce-scattered: the same payload, twice the bytes"
        self._causes.append(VolumeCause(f"{format_bytes(moved)} {text} on the wire", 0.0))
        self._left["reduce_scatter"] += moved

    def _attribute_resident_parameters(self) -> None:
        standing = self._record.values.get("comm_standing_bytes", 0.0)
        if not standing or "all_gather" not in self._theory:
            return
        expected = self._expected_standing()
        if expected is not None and standing > expected:
            saved = standing - expected
            self._attribute(
                "all_gather", -saved, f"{format_bytes(saved)} were already gathered and not gathered again"
            )

    def _expected_standing(self) -> float | None:
        """Bytes that stay gathered from a pass to the next in theory; None: unknown."""
        standings = [row.get("standing") for row in self._record.tables.get("collectives_theory", [])]
        if any(size is not None for size in standings):
            return math.fsum(filter(None, standings))
        # two passes over the layers need every parameter; those gathered once in theory stay by design
        passes = 2 * self._record.case.batch.gradient_accumulation_steps
        effective = self._record.effective
        elements = effective.get("gathered_parameters", effective.get("parameters"))
        if elements is None:
            # the engine of a plug-in need not report it
            return None
        needed = passes * elements * self._element_bytes
        # theory also gathers activations, which do not stay gathered
        return float(needed - min(needed, self._theory["all_gather"]))

    def _attribute_early_end(self) -> None:
        effective = self._record.effective
        every = finite_number(effective.get("parameters"))
        frozen = every - finite_number(effective.get("trained_parameters", every))
        most = frozen * self._element_bytes * self._record.case.batch.gradient_accumulation_steps
        saved = min(-self._left.get("all_gather", 0.0), most)
        if saved > 0:
            text = "of frozen parameters were not gathered for the backward pass, which does not reach them"
            self._attribute("all_gather", -saved, f"{format_bytes(saved)} {text}")

    def _attribute_scalars(self) -> None:
        for op, size in self._sum_by_op(SCALAR_BYTES).items():
            expected = self._theory.get(op, 0.0)
            # theory itself may include a flag, such as the count of a loss
            extra = min(size - expected, self._left[op]) if expected <= SCALAR_BYTES else 0.0
            if extra > 0:
                self._attribute(op, extra, f"{format_bytes(extra)} of norms and flags")

    def _attribute_known_deviations(self) -> None:
        effective = self._record.effective
        for deviation in strategy_description(self._record.case, self._record).deviations:
            extra = min(self._left.get(deviation.of, 0.0), self._deviation_limit(deviation))
            if extra > 0:
                values = ", ".join(f"{name} = {effective.get(name)}" for name in deviation.settings)
                text = f"{format_bytes(extra)} {deviation.why}" + (f" ({values})" if values else "")
                self._attribute(deviation.of, extra, text)

    def _deviation_limit(self, deviation: ExcessCause) -> float:
        """Bytes of a step that *deviation* can explain, by the settings of the live engine."""
        if not deviation.allowed:
            return math.inf
        effective, case = self._record.effective, self._record.case
        in_a_pass = sum(finite_number(effective.get(name)) for name in deviation.allowed)
        parameters = finite_number(effective.get("parameters"))
        elements = 2 * min(in_a_pass, parameters)
        if effective.get("checkpointed_layers"):
            # the layers' forward pass runs again, with its own gathers
            elements += parameters
        return float(elements * self._element_bytes * case.batch.gradient_accumulation_steps)

    @property
    def _element_bytes(self) -> int:
        return DTYPE_BYTES[self._record.case.precision.compute]

    def _sum_by_op(self, max_bytes: float = float("inf")) -> dict[str, float]:
        """Bytes of a rank per step by operation, of collectives of at most *max_bytes* bytes each."""
        sizes = group_pairs((row["op"], row["bytes"]) for row in self._rows if row["bytes"] <= max_bytes)
        return {op: sum(same) / self._steps for op, same in sizes.items()}
