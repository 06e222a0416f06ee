"""How ranks meet: what holds once they have."""

from __future__ import annotations

import datetime

import pytest


@pytest.mark.train
def test_after_the_start_ranks_may_wait_longer_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    import torch.distributed as dist

    from distbench.worker.rendezvous import join

    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    join(0, 1, torch.device("cpu"), None, start_s=5, patience_s=50)
    try:
        store = dist.distributed_c10d._get_default_store()
        assert store.timeout == datetime.timedelta(seconds=50), "new groups meet over it in the build"
    finally:
        dist.destroy_process_group()
