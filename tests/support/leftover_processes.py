"""Processes that a run has left behind, that listen, and that compute beside it."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from distbench.system.machine import RUN_ID_VARIABLE


def alive(run_id: str) -> list[int]:
    return with_variable(f"{RUN_ID_VARIABLE}={run_id}")


def with_variable(variable: str) -> list[int]:
    """Living processes, but this one, with *variable* in their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        # gone, or somebody else's
        with contextlib.suppress(OSError):
            if variable.encode() in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
    return [pid for pid in found if pid != os.getpid()]


def listening_addresses(process: psutil.Process) -> list[str]:
    """IP addresses that *process* listens on, one for each socket."""
    return [each.laddr.ip for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Have processes that don't descend from this one take a CPU each: the shell that starts them ends."""
    loop = f"{sys.executable} -c 'while True: pass' >/dev/null 2>&1 & echo $!"
    started = subprocess.run(["sh", "-c", f"{loop};" * count], capture_output=True, text=True, check=True)
    try:
        yield
    finally:
        for pid in started.stdout.split():
            os.kill(int(pid), signal.SIGKILL)
