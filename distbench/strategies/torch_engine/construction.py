"""Remark on models that are built in full before sharding."""

from __future__ import annotations

from distbench.workloads.base import Workload


def construction_remark(workload: Workload, memory: str) -> list[str]:
    """Sentence that a rank builds the full model in *memory* before sharding; empty if it does not."""
    if workload.on_meta:
        return []
    return [
        f"every rank constructs the whole model in {memory} and then shards it, so the build needs "
        "memory for a full replica there, because this kind of workload can't be constructed on the "
        "meta device"
    ]
