"""Times of the parts of a script's steps: on a GPU by events, which do not block."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

PARTS = ("data", "forward", "backward", "optimizer")


class SpanClock:
    """Adds up the time of each part of each step."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._steps: list[dict[str, Any]] = [{}]

    def next_step(self) -> None:
        """Begin the next step."""
        self._steps.append({})

    def clear(self) -> None:
        """Forget all steps, and begin the first."""
        self._steps = [{}]

    def start(self, part: str) -> Callable[[], None]:
        """Start *part*; the function that is returned ends it.

        Data are timed on the host, which waits for them; the rest on the device that works.
        """
        step = self._steps[-1]
        if self._is_cuda and part != "data":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()

            def stop_event() -> None:
                end.record()
                step.setdefault(part, []).append((begin, end))

            return stop_event
        began = time.perf_counter()

        def stop() -> None:
            step[part] = step.get(part, 0.0) + time.perf_counter() - began

        return stop

    def seconds(self, steps: int) -> dict[str, list[float]]:
        """Seconds of each part in each of the first *steps* steps; the device has finished them."""
        counted = self._steps[:steps]
        found = [part for part in PARTS if any(part in step for step in counted)]
        return {part: [_seconds(step.get(part, 0.0)) for step in counted] for part in found}


def _seconds(spent: Any) -> float:
    if isinstance(spent, float):
        return spent
    return float(sum(begin.elapsed_time(end) for begin, end in spent)) / 1000
