"""Other busy processes, counted: whose they are and what they are called is nobody's business."""

from __future__ import annotations

import os
import time
from pathlib import Path

from distbench.metrics._host import TICKS, descendants
from distbench.metrics._sampling import Row

# a process is busy that takes more than this part of one CPU over the trial
_BUSY = 0.1


class Others:
    """Compares the processes of the machine at the begin and at the end of a trial.

    A look at all of them costs milliseconds, so there are two only. Those that ended before the
    second are not seen; ``host_foreign_cpu`` counts them.
    """

    name = "others"

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._before: dict[tuple[int, int], float] | None = None
        self._began = 0.0

    def read(self) -> list[Row]:
        if self._before is None:
            self._began, self._before = time.monotonic(), self._all()
        return []

    def close(self) -> list[Row]:
        before, passed = self._before, time.monotonic() - self._began
        if before is None or passed <= 0:
            return []
        own = set(descendants(self._proc, os.getpid()))
        parts = [
            (spent - before.get(key, 0.0)) / passed for key, spent in self._all().items() if key[0] not in own
        ]
        return [{"others_busy": sum(part > _BUSY for part in parts), "others_most": max(parts, default=0.0)}]

    def _all(self) -> dict[tuple[int, int], float]:
        """Return CPU seconds of every process by its id and the time of its start: ids are used again."""
        found = {}
        for entry in self._proc.iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    # it ended meanwhile, or may not be looked at
                    continue
                found[int(entry.name), int(fields[19])] = sum(map(int, fields[11:13])) / TICKS
        return found
