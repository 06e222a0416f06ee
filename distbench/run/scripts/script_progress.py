"""Progress of a measured script, told by a line now and then beside its own output."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from distbench.core.units import format_count, format_duration
from distbench.ipc.trial_files import ProgressMark, progress_file, read_progress

Tell = Callable[[str], None]
"""Shows a sentence about the progress of a measurement."""

_LINE_EVERY_S = 15.0
_SILENT_S = 60.0
"""Seconds without the end of a step after which it is said."""
_NAMES = {"warmup": "warm-up", "time": "timed", "count": "counted", "profile": "profiled"}


class ScriptProgress:
    """Progress of the ranks of one launch, told by sentences."""

    def __init__(
        self, folder: Path, steps: dict[str, int], tell: Tell, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Follow the ranks that write to *folder*, whose passes have *steps*; *now* counts seconds."""
        self._folder, self._steps, self._tell, self._now = folder, steps, tell, now
        self._ranks = 0
        self._mark: ProgressMark | None = None
        self._moved = self._told = self._began = now()
        self._is_silent = False

    def follow(self, waits: Iterator[None]) -> None:
        """Look at the ranks each time that *waits* yields, until it ends."""
        for _ in waits:
            self._look(self._now())

    def _look(self, now: float) -> None:
        ranks = len([*self._folder.glob("rank*.pid")])
        if ranks > self._ranks:
            self._ranks, self._moved, self._told = ranks, now, now
            measured = f"{self._steps['warmup']} warm-up and {self._steps['time']} timed steps"
            self._tell(f"{format_count(ranks, 'rank')} began to train; measuring {measured}")
        if not self._ranks:
            return
        rank, mark = self._last()
        if mark != self._mark:
            self._mark, self._moved, self._is_silent = mark, now, False
            if mark is not None and now - self._told > _LINE_EVERY_S:
                self._told = now
                self._tell(self._step_text(mark, now))
        elif now - self._moved > _SILENT_S and not self._is_silent:
            self._is_silent = True
            at = f"rank {rank} has ended {self._place_text(mark)}" if mark else f"rank {rank} has ended none"
            self._tell(
                f"no step has ended for {format_duration(_SILENT_S)}: {at}; Ctrl-C ends the script and keeps "
                "what was measured"
            )

    def _last(self) -> tuple[int, ProgressMark | None]:
        """Rank that is behind, and its last mark."""
        marks = {rank: read_progress(progress_file(self._folder, rank)) for rank in range(self._ranks)}
        return min(marks.items(), key=lambda item: item[1].sequence if item[1] else -1)

    def _place_text(self, mark: ProgressMark) -> str:
        name, steps = _NAMES.get(mark.phase, mark.phase), self._steps.get(mark.phase, 1)
        return f"{name} step {mark.step} of {steps}"

    def _step_text(self, mark: ProgressMark, now: float) -> str:
        """Place of the rank that is behind, and the time left at its pace."""
        done, total = mark.sequence, sum(self._steps.values())
        left = (now - self._began) / done * max(0, total - done) if done else None
        more = f", about {format_duration(left)} left" if left else ""
        return f"{self._place_text(mark)}{more}"
