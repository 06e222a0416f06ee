"""What a rank keeps in memory by kind, and how far its model states are from theory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distbench.record import Record

STATES = ("parameters", "gradients", "optimizer_state", "master")
"""The model states of ZeRO's table."""
KINDS = (*STATES, "buffers")
TOLERANCE = 0.01
"""Model states that are further than this from theory, as a fraction, are worth a sentence."""

_SHARDING = ("FSDP", "FullySharded")


@dataclass(frozen=True)
class Held:
    """What one rank keeps, from its rows of a record's table ``memory``."""

    phases: list[dict[str, Any]]
    """A row for each phase of the counted step."""
    theory: dict[str, float]
    """Kind -> bytes, empty where there is no theory; ``states`` is the sum."""
    effective: dict[str, Any]
    """What the engine really did."""

    def find(self, kind: str) -> float | None:
        """Return the most of *kind* over the phases, or None if no row tells of it."""
        known = [row[kind] for row in self.phases if row.get(kind) is not None]
        return max(known) if known else None

    def most(self, kind: str) -> float:
        """Return the most of *kind* over the phases; 0 if no row tells of it."""
        return self.find(kind) or 0.0

    @property
    def difference(self) -> float | None:
        """How far model states are from theory, as a fraction of it; None if either is unknown."""
        states, theory = self.find("states"), self.theory.get("states")
        return None if states is None or not theory else states / theory - 1

    def excess(self) -> list[tuple[str, float]]:
        """Return the kinds that make up most of the difference, and by how many bytes each."""
        found = [(kind, self.most(kind) - self.theory.get(kind, 0.0)) for kind in STATES]
        return [
            (kind, bytes_) for kind, bytes_ in found if abs(bytes_) > TOLERANCE * self.theory.get(kind, 0.0)
        ]

    def cause(self) -> str:
        """Return the known cause of the difference, or nothing if there is none."""
        excess = dict(self.excess())
        if any(bytes_ < 0 for bytes_ in excess.values()):
            return ""
        if self.effective.get("zero_stage") in (1, 2) and set(excess) == {"gradients"}:
            return (
                "DeepSpeed keeps the gradient of a parameter that lies in two partitions whole on both ranks"
            )
        if str(self.effective.get("engine")).startswith(_SHARDING) and _alike(excess, self.theory):
            return "shards are padded to the same size on every rank"
        return ""


def _alike(excess: dict[str, float], theory: dict[str, float]) -> bool:
    """Return whether all kinds exceed theory by about the same fraction, as padding makes them."""
    fractions = [excess.get(kind, 0.0) / theory[kind] for kind in STATES if theory.get(kind)]
    return max(fractions) - min(fractions) <= TOLERANCE


def held(record: Record | None) -> Held | None:
    """Return what the rank of *record* keeps whose model states are largest; None if no rank told."""
    rows = record.tables.get("memory", []) if record else []
    ranks: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if row.get("phase") in ("forward", "backward", "step"):
            ranks.setdefault(row["rank"], []).append(row)
    if not ranks or record is None:
        return None
    theory = next((row for row in rows if row.get("phase") == "theory"), {})
    found = [Held(phases, theory, record.effective) for phases in ranks.values()]
    return max(found, key=lambda rank: (rank.most("states"), rank.most("peak")))
