"""``startup``: what a trial costs before its first timed step."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.core.columns import columns_of
from distbench.metrics.base import Metric, TrialData


@dataclass(frozen=True)
class Startup(Metric):
    """Time to join the process group, to build model and engine, and to warm up; of the slowest rank."""

    columns = columns_of("s", "lower", "max")(
        launch_s="From the launcher's start to the rank's first line; imports are done by then in a "
        "fork server.",
        start_s="From the rank's first line to a joined process group.",
        build_s="Building model, engine and optimizer, weights loaded.",
        warmup_s="All warm-up steps, the first of which may compile.",
    )

    def summary(self, trial: TrialData) -> dict[str, float]:
        return {f"{phase}_s": max(trial.phases[phase]) for phase in ("launch", "start", "build", "warmup")}
