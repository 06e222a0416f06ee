"""BatchNorm over all ranks: what is refused before launch."""

from __future__ import annotations

from pathlib import Path

from support.planned_suites import planned


def test_statistics_of_all_ranks_are_refused_on_cpus_before_launch(tmp_path: Path) -> None:
    workload = '{user: {model: "json:loads", batch_norm: sync}}'
    item = planned(tmp_path, "ddp: {}", 2, workload=workload, data="text", batch="{global_batch_size: 8}")
    assert item.problem == (
        "batch_norm: sync: torch's SyncBatchNorm runs on GPUs only; use batch_norm: per_rank"
    )
