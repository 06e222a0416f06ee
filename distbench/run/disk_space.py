"""The room for trials on the disk of a run, and the end of the run where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from distbench.core.errors import InfrastructureError
from distbench.core.units import bytes_text, count_text
from distbench.ipc.trial_files import FULL
from distbench.plan import PlannedTrial
from distbench.record import Record, Status, round_text
from distbench.record.run_folder import LEAST_FREE, Run, resume_command, storing
from distbench.run.failure_reasons import UNWRITABLE

_LEAST = 1 << 20
"""Bytes below which a disk is full: what trials write is smaller or larger, by chance."""
_BLOCK = 512
"""Bytes of a block of ``st_blocks`` (stat(2))."""
_SAID = tuple(os.strerror(number) for number in FULL)


class Room:
    """Looks before and after each trial whether the disk of a run takes what trials leave."""

    def __init__(self, run: Run, left: Callable[[], int]) -> None:
        """Look at the disk of *run*, of which so many trials are *left* to be made."""
        self._run, self._left = run, left
        self._largest: dict[str, int] = {}
        """Kind of job -> most bytes that a trial of this session has left."""

    def check(self, task: PlannedTrial) -> None:
        """See that there is room for *task*.

        Raises:
            InfrastructureError: there is not as much as an earlier trial of its kind has left.
        """
        free = self._free()
        if free < max(_LEAST, self._largest.get(task.job.kind, 0)):
            raise self._end(f"its disk is full ({bytes_text(free)} free): {_named(task)} is not begun")

    def check_ended(self, task: PlannedTrial, record: Record) -> None:
        """See that no full disk is why *task* has failed, by its *record*: no later one would end otherwise.

        Where the room is back now that the trial has ended, it was the trial that needed too much.

        Raises:
            InfrastructureError: the disk is full, here or on the node of the rank that has failed.
        """
        if not record.status.is_failure or record.status is Status.CANCELLED:
            return
        free, lost = self._free(), f"{_named(task)} is lost ({record.reason})"
        is_said = any(text in record.reason for text in _SAID)
        if free < (LEAST_FREE if is_said else _LEAST):
            raise self._end(f"its disk is full ({bytes_text(free)} free): {lost}")
        # what starts ranks writes nothing but what belongs to the run
        by_starting = is_said and record.failure is not None and record.failure.rank is None
        if UNWRITABLE in record.reason or by_starting:
            raise self._end(f"the disk of a node is full: {lost}")

    def took(self, task: PlannedTrial, folder: Path) -> None:
        """Take in that *task* has left *folder*."""
        self._largest[task.job.kind] = max(self._largest.get(task.job.kind, 0), _size(folder))

    def _free(self) -> int:
        # a folder that is gone is told as one that can't be written
        with storing(self._run.folder / "trials"):
            return shutil.disk_usage(self._run.folder).free

    def _end(self, why: str) -> InfrastructureError:
        """The end of the run for want of room."""
        left = max(1, self._left())
        largest = max(map(_size, self._run.trials()), default=0)
        each = f", of up to {bytes_text(largest)} each so far" if largest else ""
        needed = bytes_text(max(LEAST_FREE, largest * left))
        return InfrastructureError(
            f"{self._run.folder}: {why}; everything stored so far is intact; for the "
            f"{count_text(left, 'trial')} to go{each}, have {needed} free",
            f"free some space, then resume with: {resume_command(self._run.folder)}",
        )


def _named(task: PlannedTrial) -> str:
    return f"{task.job.kind} {task.case.name}, {round_text(task.round)},"


def _size(folder: Path) -> int:
    """Bytes that the files in *folder* take on their disk; one that goes meanwhile takes none."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += _BLOCK * file.lstat().st_blocks
    return total
