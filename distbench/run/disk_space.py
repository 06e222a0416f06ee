"""The room for trials on the disk of a run, and the end of the run where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from distbench.core.errors import InfrastructureError
from distbench.core.units import format_bytes, format_count
from distbench.ipc.trial_files import DISK_FULL_ERRNOS
from distbench.plan import PlannedTrial
from distbench.record import Record, Status, round_text
from distbench.record.run_folder import MIN_FREE_BYTES, Run, resumable_write_errors, resume_command
from distbench.run.failure_reasons import CANNOT_WRITE_TEXT

_DISK_FULL_BYTES = 1 << 20
"""Bytes below which a disk is full: what trials write is smaller or larger, by chance."""
_STAT_BLOCK_BYTES = 512
"""Bytes of a block of ``st_blocks`` (stat(2))."""
_DISK_FULL_TEXTS = tuple(os.strerror(number) for number in DISK_FULL_ERRNOS)


class DiskSpace:
    """Looks before and after each trial whether the disk of a run takes what trials leave."""

    def __init__(self, run: Run, pending: Callable[[], int]) -> None:
        """Look at the disk of *run*, of which so many trials are *pending* to be made."""
        self._run, self._pending = run, pending
        self._largest: dict[str, int] = {}
        """Kind of job -> most bytes that a trial of this session has left."""

    def check_before(self, task: PlannedTrial) -> None:
        """See that there is room for *task*.

        Raises:
            InfrastructureError: there is not as much as an earlier trial of its kind has left.
        """
        free = self._free()
        if free < max(_DISK_FULL_BYTES, self._largest.get(task.job.kind, 0)):
            raise self._disk_full_error(
                f"its disk is full ({format_bytes(free)} free): {_trial_text(task)} is not begun"
            )

    def check_after(self, task: PlannedTrial, record: Record) -> None:
        """See that no full disk is why *task* has failed, by its *record*: no later one would end otherwise.

        Where the room is back now that the trial has ended, it was the trial that needed too much.

        Raises:
            InfrastructureError: the disk is full, here or on the node of the rank that has failed.
        """
        if not record.status.is_failure or record.status is Status.CANCELLED:
            return
        free, lost = self._free(), f"{_trial_text(task)} is lost ({record.reason})"
        is_said = any(text in record.reason for text in _DISK_FULL_TEXTS)
        if free < (MIN_FREE_BYTES if is_said else _DISK_FULL_BYTES):
            raise self._disk_full_error(f"its disk is full ({format_bytes(free)} free): {lost}")
        # what starts ranks writes nothing but what belongs to the run
        by_starting = is_said and record.failure is not None and record.failure.rank is None
        if CANNOT_WRITE_TEXT in record.reason or by_starting:
            raise self._disk_full_error(f"the disk of a node is full: {lost}")

    def record_usage(self, task: PlannedTrial, folder: Path) -> None:
        """Take in that *task* has left *folder*."""
        self._largest[task.job.kind] = max(self._largest.get(task.job.kind, 0), _disk_usage(folder))

    def _free(self) -> int:
        # a folder that is gone is told as one that can't be written
        with resumable_write_errors(self._run.folder / "trials"):
            return shutil.disk_usage(self._run.folder).free

    def _disk_full_error(self, why: str) -> InfrastructureError:
        """The end of the run for want of room."""
        left = max(1, self._pending())
        largest = max(map(_disk_usage, self._run.recorded_trials()), default=0)
        each = f", of up to {format_bytes(largest)} each so far" if largest else ""
        needed = format_bytes(max(MIN_FREE_BYTES, largest * left))
        return InfrastructureError(
            f"{self._run.folder}: {why}; everything stored so far is intact; for the "
            f"{format_count(left, 'trial')} to go{each}, have {needed} free",
            f"free some space, then resume with: {resume_command(self._run.folder)}",
        )


def _trial_text(task: PlannedTrial) -> str:
    return f"{task.job.kind} {task.case.name}, {round_text(task.round)},"


def _disk_usage(folder: Path) -> int:
    """Bytes that the files in *folder* take on their disk; one that goes meanwhile takes none."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += _STAT_BLOCK_BYTES * file.lstat().st_blocks
    return total
