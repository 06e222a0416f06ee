"""BatchNorm over all ranks: what is refused before launch."""

from support.planned_suites import planned


def test_statistics_of_all_ranks_are_refused_on_cpus_before_launch(tmp_path):
    workload = '{user: {model: "json:loads", batch_norm: sync}}'
    item = planned(tmp_path, "ddp: {}", 2, workload=workload, data="text", batch="{global_batch_size: 8}")
    assert item.problem == (
        "batch_norm: sync: torch's SyncBatchNorm runs on GPUs only; use batch_norm: per_rank"
    )
