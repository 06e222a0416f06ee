"""Check free disk space before and after each trial."""

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
"""A disk with fewer free bytes counts as full: how much the next write needs is a matter of chance."""
_STAT_BLOCK_BYTES = 512
"""Bytes per block of ``st_blocks`` (stat(2))."""
_DISK_FULL_TEXTS = tuple(os.strerror(number) for number in DISK_FULL_ERRNOS)


class DiskSpace:
    """Checks free disk space before and after each trial."""

    def __init__(self, run: Run, pending: Callable[[], int]) -> None:
        """Check the disk of *run*; *pending* counts the trials that are still to be made."""
        self._run, self._pending = run, pending
        self._largest: dict[str, int] = {}
        """Kind of job -> most bytes that a trial of this session has left."""

    def check_before(self, task: PlannedTrial) -> None:
        """Check that the disk has room for *task*.

        Raises:
            InfrastructureError: there is less space than an earlier trial of its kind has left behind.
        """
        free = self._free()
        if free < max(_DISK_FULL_BYTES, self._largest.get(task.job.kind, 0)):
            raise self._disk_full_error(
                f"its disk is full ({format_bytes(free)} free): {_trial_text(task)} is not started"
            )

    def check_after(self, task: PlannedTrial, record: Record) -> None:
        """Check that *task*, with its *record*, has not failed due to a full disk: later ones would, too.

        If the space is free again after the trial, the trial itself needed too much.

        Raises:
            InfrastructureError: the disk is full, here or on the node of the rank that has failed.
        """
        if not record.status.is_failure or record.status is Status.CANCELLED:
            return
        free, lost = self._free(), f"{_trial_text(task)} failed ({record.reason})"
        is_said = any(text in record.reason for text in _DISK_FULL_TEXTS)
        if free < (MIN_FREE_BYTES if is_said else _DISK_FULL_BYTES):
            raise self._disk_full_error(f"its disk is full ({format_bytes(free)} free): {lost}")
        # what starts ranks writes only files of the run
        by_starting = is_said and record.failure is not None and record.failure.rank is None
        if CANNOT_WRITE_TEXT in record.reason or by_starting:
            raise self._disk_full_error(f"the disk of a node is full: {lost}")

    def record_usage(self, task: PlannedTrial, folder: Path) -> None:
        """Record how much space *task* has left occupied in *folder*."""
        self._largest[task.job.kind] = max(self._largest.get(task.job.kind, 0), _disk_usage(folder))

    def _free(self) -> int:
        # a missing folder is reported as an unwritable one
        with resumable_write_errors(self._run.folder / "trials"):
            return shutil.disk_usage(self._run.folder).free

    def _disk_full_error(self, why: str) -> InfrastructureError:
        """Error that ends the run because its disk is full."""
        left = max(1, self._pending())
        largest = max(map(_disk_usage, self._run.recorded_trials()), default=0)
        each = f" (up to {format_bytes(largest)} each so far)" if largest else ""
        needed = format_bytes(max(MIN_FREE_BYTES, largest * left))
        return InfrastructureError(
            f"{self._run.folder}: {why}; everything stored so far is intact; the remaining "
            f"{format_count(left, 'trial')}{each} need {needed} of free space",
            f"free some space, then resume with: {resume_command(self._run.folder)}",
        )


def _trial_text(task: PlannedTrial) -> str:
    return f"{task.job.kind} {task.case.name}, {round_text(task.round)},"


def _disk_usage(folder: Path) -> int:
    """Bytes that the files in *folder* take on disk; files that disappear meanwhile count as 0."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += _STAT_BLOCK_BYTES * file.lstat().st_blocks
    return total
