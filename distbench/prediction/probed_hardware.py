"""Devices that a probe ran on, as its ranks recorded them."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.core.grouping import group_pairs
from distbench.core.text import one_line
from distbench.core.units import format_count, join_words
from distbench.prediction.probed_rates import PROBE, node_count
from distbench.record import Record


def device_model(record: Record) -> str:
    """Model of the GPUs or of the CPU that the ranks of *record* ran on; empty: it was not recorded."""
    name = record.environment.get("gpu" if record.case.device == "cuda" else "cpu")
    return one_line(str(name)) if name else ""


def hardware_text(records: Sequence[Record]) -> str:
    """Devices of the probes among *records*: ``, on 1 and 2 x NVIDIA A100, 1 node``; empty: unknown."""
    probes = [each for each in records if each.job.kind == PROBE]
    places = [(_device_text(each), node_count(each)) for each in probes]
    known = [(place, each.case.world_size) for place, each in zip(places, probes, strict=True) if place[0]]
    texts = [
        f"{join_words([str(size) for size in sorted({*sizes})])} {device}, {format_count(nodes, 'node')}"
        for (device, nodes), sizes in group_pairs(known).items()
    ]
    return f", on {'; '.join(texts)}" if texts else ""


def _device_text(record: Record) -> str:
    """Devices of the ranks of *record*, to follow their number; empty: they were not recorded."""
    name = device_model(record)
    if not name:
        return ""
    return f"x {name}" if record.case.device == "cuda" else f"CPU ranks of {name}"
