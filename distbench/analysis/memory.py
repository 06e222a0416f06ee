"""Break a rank's memory down by kind and compare model states with theory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distbench.analysis.settings import strategy_description
from distbench.core.case import MODEL_STATES
from distbench.core.grouping import group_by, group_pairs
from distbench.record import Record
from distbench.strategies.description import ExcessCause

MODEL_STATE_TOLERANCE = 0.01
"""Model states that deviate from theory by more than this fraction are reported."""

PEAK_HOLDERS = {
    "before": "from before the step",
    "forward": "made in the forward pass",
    "backward": "made in the backward pass",
    "step": "made in the optimizer step",
    "internal": "allocated inside collectives or compiled code",
    "transient": "allocated and freed within one operation",
}
"""Holder of memory at a peak -> its description."""
_MIN_PEAK_SHARE = 0.1
"""Smallest share of a peak for which an operation is named."""


@dataclass(frozen=True)
class RankMemory:
    """Memory of one rank, from its rows of a record's table ``memory``."""

    phases: list[dict[str, Any]]
    """Rows for each phase of the counted step."""
    theory: dict[str, float]
    """Kind -> bytes, empty without theory; ``states`` is the sum."""
    deviations: tuple[ExcessCause, ...]
    """Known reasons why the engine may keep more."""

    def maximum(self, kind: str) -> float | None:
        """Largest value of *kind* over the phases, or None if no row has it."""
        known = [row[kind] for row in self.phases if row.get(kind) is not None]
        return max(known) if known else None

    def maximum_or_zero(self, kind: str) -> float:
        """Largest value of *kind* over the phases; 0 if no row has it."""
        return self.maximum(kind) or 0.0

    @property
    def difference(self) -> float | None:
        """Difference of model states from theory as a fraction of theory; None if either is unknown."""
        states, theory = self.maximum("states"), self.theory.get("states")
        return None if states is None or not theory else states / theory - 1

    def excess(self) -> dict[str, float]:
        """Kinds that make up most of the difference, with their bytes."""
        theory = {kind: self.theory.get(kind, 0.0) for kind in MODEL_STATES}
        excess = {kind: self.maximum_or_zero(kind) - size for kind, size in theory.items()}
        return {
            kind: size for kind, size in excess.items() if abs(size) > MODEL_STATE_TOLERANCE * theory[kind]
        }

    def known_cause(self) -> str:
        """Known cause of the difference; empty if there is none."""
        excess = self.excess()
        if any(size < 0 for size in excess.values()):
            return ""
        for deviation in self.deviations:
            if set(excess) == {deviation.of} or (
                deviation.of == "states" and _exceeds_evenly(excess, self.theory)
            ):
                return deviation.why
        return ""


def _exceeds_evenly(excess: dict[str, float], theory: dict[str, float]) -> bool:
    """True if all kinds exceed theory by about the same fraction, as with padding."""
    fractions = [excess.get(kind, 0.0) / theory[kind] for kind in MODEL_STATES if theory.get(kind)]
    return max(fractions) - min(fractions) <= MODEL_STATE_TOLERANCE


def largest_rank_memory(record: Record | None) -> RankMemory | None:
    """Memory of the rank with the largest model states; None if no rank reported any."""
    rows = record.tables.get("memory", []) if record else []
    counted = [row for row in rows if row.get("phase") in ("forward", "update", "backward", "step")]
    ranks = group_by(counted, lambda row: int(row["rank"]))
    if not ranks or record is None:
        return None
    theory = next((row for row in rows if row.get("phase") == "theory"), {})
    deviations = strategy_description(record.case, record).deviations
    found = [RankMemory(phases, theory, deviations) for phases in ranks.values()]
    return max(found, key=lambda rank: (rank.maximum_or_zero("states"), rank.maximum_or_zero("peak")))


@dataclass(frozen=True)
class PeakMemory:
    """Memory of the rank with the highest peak in the counted step, by holder."""

    rank: int
    phase: str
    """``forward``, ``backward`` or ``step``."""
    holders: list[dict[str, Any]]
    """Rows of the table ``memory_peak_holders``, largest operations first; they add up to the peak."""

    @property
    def bytes(self) -> float:
        """Bytes at the peak."""
        return float(sum(row["bytes"] for row in self.holders))

    @property
    def by_holder(self) -> dict[str, float]:
        """Bytes of each of ``PEAK_HOLDERS``."""
        sizes = group_pairs((row["holder"], float(row["bytes"])) for row in self.holders)
        return {name: sum(sizes.get(name, [])) for name in PEAK_HOLDERS}

    @property
    def largest_operations(self) -> list[dict[str, Any]]:
        """Rows of operations with at least a tenth of the peak, the largest first."""
        return [row for row in self.holders if row["op"] and row["bytes"] >= _MIN_PEAK_SHARE * self.bytes]


def peak_memory(record: Record | None) -> PeakMemory | None:
    """Peak of the counted step of the rank where it is highest; None if no rank reported it."""
    by_rank = group_by(
        record.tables.get("memory_peak_holders", []) if record else [], lambda row: int(row["rank"])
    )
    found = [PeakMemory(rank, str(rows[0]["phase"]), rows) for rank, rows in by_rank.items()]
    return max(found, key=lambda peak: peak.bytes, default=None)


def smallest_device_memory(record: Record | None) -> float | None:
    """Bytes of the smallest GPU of the ranks of *record*; None if unknown, or if they had none."""
    if record is None or record.case.device == "cpu":
        return None
    memory = record.environment.get("gpu_memory_bytes")
    sizes = (
        [size for size in memory if isinstance(size, int) and size > 0] if isinstance(memory, list) else []
    )
    return float(min(sizes)) if sizes else None
