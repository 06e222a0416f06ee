"""Join the process group over a store at the address of rank 0."""

import datetime
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist

# the store keeps no empty values
_EMPTY_TEXT = "nothing"


@dataclass(frozen=True)
class StoreExchange:
    """Exchange of texts between ranks over their store, outside of collective calls.

    A rank that waits in a collective call receives nothing.
    """

    store: dist.Store
    rank: int
    size: int
    timeout_s: float
    """Seconds that a rank with a text waits for the others, which are in the same step."""

    def all_gather(self, topic: str, text: str) -> list[str]:
        """Publish *text* on *topic*, and return the texts of all ranks, by rank; a text may be empty.

        Each rank must call this equally often for a topic.

        Raises:
            DistStoreError: *text* is not empty, and another rank does not publish one within ``timeout_s``.
        """
        times = self.store.add(f"{topic}/{self.rank}", 1)
        names = [f"{topic}/{times}/{rank}" for rank in range(self.size)]
        self.store.set(names[self.rank], text or _EMPTY_TEXT)
        if text:
            self.store.wait(names, datetime.timedelta(seconds=self.timeout_s))
        # blocks until there is a value: a finished rank waits for one that still inspects the training
        heard = [self.store.get(name).decode() for name in names]
        return ["" if each == _EMPTY_TEXT else each for each in heard]


def join_process_group(
    rank: int,
    size: int,
    device: torch.device,
    listen_fd: int | None,
    *,
    join_timeout_s: float,
    collective_timeout_s: float,
) -> dist.Store:
    """Join the process group of all *size* ranks; return the store where they met.

    Args:
        listen_fd: Descriptor of the listening socket of the rendezvous, if the launcher has already bound
            one.
        join_timeout_s: Seconds that the others may take to join.
        collective_timeout_s: Seconds that a rank may wait for others afterwards, in a collective call or to
            begin one.
    """
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        size,
        is_master=rank == 0,
        timeout=datetime.timedelta(seconds=join_timeout_s),
        master_listen_fd=listen_fd,
    )
    # gloo next to NCCL: offloaded parameters are reduced and gathered on the CPU
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    timeout = datetime.timedelta(seconds=collective_timeout_s)
    # without device_id: groups that are split off would lack gloo then
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    dist.barrier()
    # new groups also form over the store, when ranks may arrive at very different times
    store.set_timeout(timeout)
    return store


def connect_nccl(device: torch.device) -> None:
    """Have NCCL connect all ranks; gloo has already done so.

    NCCL connects in its first call, which is in the build of some strategies and in the first step of others.
    """
    if device.type == "cuda":
        dist.all_reduce(torch.zeros(1, device=device))
        torch.cuda.synchronize(device)
