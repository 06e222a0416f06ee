"""How ranks meet: what holds once they have."""

import datetime
from concurrent.futures import ThreadPoolExecutor

import pytest


def test_after_the_start_ranks_may_wait_longer_for_each_other(monkeypatch):
    import torch
    import torch.distributed as dist

    from distbench.worker.rendezvous import join_process_group

    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    join_process_group(0, 1, torch.device("cpu"), None, join_timeout_s=5, collective_timeout_s=50)
    try:
        store = dist.distributed_c10d._get_default_store()
        assert store.timeout == datetime.timedelta(seconds=50), "new groups meet over it in the build"
    finally:
        dist.destroy_process_group()


def test_ranks_hear_what_each_of_them_says_of_a_topic_this_time():
    import torch.distributed as dist

    from distbench.worker.rendezvous import StoreExchange

    store = dist.HashStore()
    first, second = (StoreExchange(store, rank, 2, timeout_s=0.1) for rank in range(2))
    with ThreadPoolExecutor(2) as ranks:
        for said in (["it fails", "it fails"], ["", "it fails"], ["", ""]):
            heard = ranks.map(lambda rank, own: rank.all_gather("fp64", own), (first, second), said)
            assert list(heard) == [said, said]
    with pytest.raises(dist.DistStoreError):
        second.all_gather("fp64", "it fails, and the other is in a collective operation")
