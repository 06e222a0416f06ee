"""``steptime``: how long a step takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from distbench.metrics.base import Column, Metric, Session, Trial, Values


@dataclass(frozen=True)
class StepTime(Metric):
    """Wall time of whole steps, back to back: data, forward, backward, reduction, optimizer."""

    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "step_s",
            "s",
            "lower",
            "max",
            "Wall time of a step: perf_counter on a CPU, CUDA events on a GPU. The slowest rank "
            "defines each step; the trial's value is the mean over its timed steps.",
            per_step=True,
        ),
        Column(
            "cpu_s",
            "s",
            "lower",
            "max",
            "CPU time of the process per timed step, all threads (process_time): beside the wall "
            "time it tells a slow machine from slow code.",
        ),
    )

    def start(self, session: Session) -> Any:
        import time

        return time.process_time()

    def values(self, session: Session, state: Any) -> Values:
        import time

        spent = time.process_time() - state
        return {"step_s": list(session.steps), "cpu_s": spent / max(1, len(session.steps))}

    def summary(self, trial: Trial) -> dict[str, float]:
        return {"step_s": trial.slowest_mean("step_s")}
