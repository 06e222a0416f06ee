"""Where a rank constructs a model that is sharded afterwards."""

from __future__ import annotations

from distbench.workloads.base import Workload


def construction_remark(workload: Workload, memory: str) -> list[str]:
    """That a rank has the whole model in *memory* while it is built, in a sentence; empty if it has not."""
    if workload.on_meta:
        return []
    return [
        f"every rank constructs the whole model in {memory} and then shards it, so its build needs room for "
        "a "
        "replica there: a workload of this kind can't be constructed on the meta device"
    ]
