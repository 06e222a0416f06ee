"""Place of a process among the ranks of a script: its rank, its node, and the results of the others."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch.distributed as dist

from distbench.ipc.script_files import claim_file
from distbench.ipc.trial_files import result_file

_WAIT_S = 30.0
"""Seconds in which ranks that have ended the same step have left their results."""


def find_rank() -> tuple[int, int]:
    """Rank of this process, and their number."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    for rank, ranks in (
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ):
        if rank in os.environ and ranks in os.environ:
            return int(os.environ[rank]), int(os.environ[ranks])
    return 0, 1


def node_numbers(ranks: int) -> list[int]:
    """Number of the node of each rank; ranks fill nodes in order, as launchers number them."""
    names = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")
    local = next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), ranks)
    return [rank // max(1, local) for rank in range(ranks)]


def claim_rank(folder: Path, rank: int) -> bool:
    """True if this process is the first that trains as *rank*: a command may run several scripts."""
    try:
        descriptor = os.open(claim_file(folder, rank), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    os.write(descriptor, str(os.getpid()).encode())
    os.close(descriptor)
    return True


def wait_for_results(folder: Path, ranks: int) -> bool:
    """True once all *ranks* ranks have left their results: none needs another any more."""
    end = time.monotonic() + _WAIT_S
    results = [result_file(folder, rank) for rank in range(ranks)]
    while not all(file.exists() for file in results):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
