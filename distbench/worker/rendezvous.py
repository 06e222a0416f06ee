"""How ranks meet: a store at the address of rank 0, and a process group over it."""

import datetime
import os

import torch
import torch.distributed as dist


def join(
    rank: int, size: int, device: torch.device, listener: int | None, *, start_s: float, step_s: float
) -> None:
    """Join the process group of *size* ranks, all of them.

    Args:
        listener: Descriptor of the listening socket of the rendezvous, if the launcher has already bound one.
        start_s: Seconds that the others may take to come.
        step_s: Seconds that a collective call may take.
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
    timeout = datetime.timedelta(seconds=step_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    dist.barrier()
