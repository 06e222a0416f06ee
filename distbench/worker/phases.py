"""Where a rank is, and how long it took to get there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from distbench.trial import Progress


@dataclass
class Phases:
    """Where this rank is, and how long each phase took."""

    progress: Progress
    current: str = "start"
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the body as phase *name* and show it to the parent."""
        self.current = name
        self.progress.at(name)
        began = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - began
