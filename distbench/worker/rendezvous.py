"""How ranks meet: a store at the address of rank 0, and a process group over it."""

import datetime
import os

import torch
import torch.distributed as dist


def join(
    rank: int, size: int, device: torch.device, listener: int | None, *, start_s: float, patience_s: float
) -> dist.Store:
    """Join the process group of *size* ranks, all of them; the store where they met.

    Args:
        listener: Descriptor of the listening socket of the rendezvous, if the launcher has already bound one.
        start_s: Seconds that the others may take to come.
        patience_s: Seconds that a rank may wait for others afterwards, in a collective call or to begin one.
    """
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        size,
        is_master=rank == 0,
        timeout=datetime.timedelta(seconds=start_s),
        master_listen_fd=listener,
    )
    # gloo next to NCCL: offloaded parameters are reduced and gathered on the CPU
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    timeout = datetime.timedelta(seconds=patience_s)
    # without device_id: groups that are split off would lack gloo then
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    dist.barrier()
    # new groups meet over the store, too, when ranks may be far apart
    store.set_timeout(timeout)
    return store


def connect(device: torch.device) -> None:
    """Have NCCL connect all ranks; gloo has done so.

    It does it in its first call, which is in the build of some strategies and in the first step of others.
    """
    if device.type == "cuda":
        dist.all_reduce(torch.zeros(1, device=device))
        torch.cuda.synchronize(device)
