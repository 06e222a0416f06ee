"""Layers of a model: time, FLOPs and bytes of each in a step, and which roof limits it.

The roofline model (Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785): operations with fewer
FLOPs per byte than the ratio of the two roofs are limited by memory, all others by computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from distbench.core.grouping import group_by
from distbench.record import Record

OUTSIDE = "outside of modules"
"""Name of the operations of no module."""


@dataclass(frozen=True)
class LayerStep:
    """A layer in one step, on the rank where it takes the longest; forward and backward pass together."""

    name: str
    """Name of its modules, ``*`` for numbers; or ``OUTSIDE``."""
    kind: str
    """Class of its modules; empty for ``OUTSIDE``."""
    modules: int | None
    seconds: float
    share: float
    """Of the time of all layers of that rank."""
    flops: float | None
    bytes: float | None

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte; None: unknown."""
        return None if self.flops is None or not self.bytes else self.flops / self.bytes

    def roof(self, matmul: float | None, copy: float | None) -> Literal["compute", "memory"] | None:
        """Roof that limits the layer; None if its FLOPs or a roof are unknown.

        Args:
            matmul: Best FLOP/s of the device.
            copy: Its best bytes per second.
        """
        if self.intensity is None or not matmul or not copy:
            return None
        return "memory" if self.intensity < matmul / copy else "compute"


def layer_steps(record: Record | None) -> list[LayerStep]:
    """Layers of *record* by time, the longest first; empty: no step was profiled."""
    rows = record.tables.get("layers", []) if record else []
    timed = [row for row in rows if row.get("forward_s") is not None]
    whole = {
        rank: sum(map(_seconds, of)) for rank, of in group_by(timed, lambda row: int(row["rank"])).items()
    }
    by_layer = group_by(timed, lambda row: (row["layer"], row["kind"]))
    found = [_layer_step(max(of, key=_seconds), whole) for of in by_layer.values()]
    return sorted(found, key=lambda layer: -layer.seconds)


def _layer_step(row: dict[str, Any], whole: dict[int, float]) -> LayerStep:
    seconds, modules = _seconds(row), row.get("modules")
    return LayerStep(
        row["layer"] or OUTSIDE,
        row["kind"] or "",
        None if modules is None else int(modules),
        seconds,
        seconds / whole[int(row["rank"])] if seconds else 0.0,
        _sum(row, "flops"),
        _sum(row, "bytes"),
    )


def _seconds(row: dict[str, Any]) -> float:
    return float(row["forward_s"] or 0.0) + float(row["backward_s"] or 0.0)


def _sum(row: dict[str, Any], what: str) -> float | None:
    """*what* of both passes together; None: unknown."""
    passes = [row.get(f"{part}_{what}") for part in ("forward", "backward")]
    return None if None in passes else float(sum(filter(None, passes)))
