"""Processes that a run has left behind."""

from __future__ import annotations

from pathlib import Path

from distbench.system.machine import RUN_ID_VARIABLE


def alive(run_id: str) -> list[int]:
    tag = f"{RUN_ID_VARIABLE}={run_id}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if tag in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found
