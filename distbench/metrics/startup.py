"""``startup``: what a trial costs before its first timed step."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.core.columns import columns_of
from distbench.metrics.base import Metric, TrialData

_PHASES = ("launch", "start", "build", "warmup")


@dataclass(frozen=True)
class Startup(Metric):
    """Time to join the process group, to build model and engine, and to warm up; of the slowest rank."""

    columns = columns_of("s", "lower", "max")(
        launch_s="From the launcher's start to the rank's first line; imports are done by then in a "
        "fork server.",
        start_s="From the rank's first line to a joined process group.",
        build_s="Building model, engine and optimizer, weights loaded.",
        warmup_s="All warm-up steps, the first of which may compile.",
        startup_s="All four: from the launcher's start to the first timed step.",
    )

    def summary(self, trial: TrialData) -> dict[str, float]:
        by_phase = [trial.phases[phase] for phase in _PHASES]
        slowest = {f"{phase}_s": max(seconds) for phase, seconds in zip(_PHASES, by_phase, strict=True)}
        return slowest | {"startup_s": max(map(sum, zip(*by_phase, strict=True)))}
