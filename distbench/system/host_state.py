"""State of a host: limits, disk space, addresses, build locks and GPUs."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from distbench.system.gpu_state import GpuState, inspect_gpus

_SHM = Path("/dev/shm")
_INFINIBAND = Path("/sys/class/infiniband")


@dataclass(frozen=True)
class HostState:
    """State of a host, as it sees itself."""

    name: str
    """Its host name."""
    addresses: list[str]
    """Addresses that its own name resolves to; empty: none."""
    shm_free_bytes: int | None
    """Free bytes in ``/dev/shm``, through which NCCL's ranks of a node communicate; None: it is missing."""
    max_open_files: int
    """Maximum open descriptors of a process; -1: unlimited."""
    max_locked_bytes: int
    """Maximum bytes that a process may lock; -1: unlimited. RDMA locks its buffers."""
    infiniband_devices: list[str]
    """InfiniBand or RoCE devices."""
    free_bytes: dict[str, int]
    """Folder -> free bytes on its file system."""
    unwritable_folders: list[str]
    """Folders without write permission."""
    build_locks: dict[str, float]
    """Lock of an op that is being built -> its age in seconds."""
    gpus: list[GpuState] = field(default_factory=list)
    gpu_error: str = ""
    """Reason why the state of its GPUs is unknown; empty: it is known, or there are none."""


def inspect_host(folders: Iterable[Path], ops: Path, *, resolve_name: bool = True) -> HostState:
    """State of this host.

    Args:
        folders: Folders that runs write to.
        ops: Folder of C++ ops, each with a lock while it is built.
        resolve_name: Resolve its name, which takes seconds if no name server answers.
    """
    # the import takes milliseconds, which a process that only imports this module need not spend
    import pynvml

    found, unknown = inspect_gpus(pynvml)
    own = list(folders)
    return HostState(
        name=socket.gethostname(),
        addresses=_addresses(socket.gethostname()) if resolve_name else [],
        shm_free_bytes=_free(_SHM),
        max_open_files=_limit(resource.RLIMIT_NOFILE),
        max_locked_bytes=_limit(resource.RLIMIT_MEMLOCK),
        infiniband_devices=sorted(each.name for each in _INFINIBAND.iterdir())
        if _INFINIBAND.is_dir()
        else [],
        free_bytes={str(folder): free for folder in own if (free := _free(folder)) is not None},
        unwritable_folders=[str(folder) for folder in own if not _can_write(folder)],
        build_locks=_locks(ops),
        gpus=found,
        gpu_error=unknown,
    )


def _limit(which: int) -> int:
    soft, _ = resource.getrlimit(which)
    return -1 if soft == resource.RLIM_INFINITY else soft


def _existing(folder: Path) -> Path:
    """*folder*, or the nearest one above that exists."""
    return next((each for each in (folder, *folder.parents) if each.is_dir()), Path("/"))


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(_existing(folder.absolute())).free
    except OSError:
        return None


def _can_write(folder: Path) -> bool:
    return os.access(_existing(folder.absolute()), os.W_OK | os.X_OK)


def _addresses(name: str) -> list[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(each[4][0]) for each in found})


def _locks(ops: Path) -> dict[str, float]:
    ages = {}
    # torch's builder keeps one in the folder of each op
    for lock in ops.glob("**/lock"):
        with suppress(OSError):
            ages[str(lock)] = time.time() - lock.stat().st_mtime
    return ages
