"""Launches of which nothing was started, and how a trial on them ends."""

from pathlib import Path
from typing import Any

from distbench.core.job import job_kind
from distbench.core.measurement import TimeLimits
from distbench.launchers.base import RunningLaunch
from distbench.run.interruption import StopRequest
from distbench.run.trial_monitor import TrialMonitor, TrialOutcome


class FakeLaunch(RunningLaunch):
    """Ranks that no signal reaches; a subclass says how they end."""

    def signal(self, number: int) -> None:
        """Nobody is there."""

    def stop(self) -> None:
        """Nothing is left."""


def outcome(
    launch: RunningLaunch, folder: Path, ranks: int = 1, limits: TimeLimits | None = None, **options: Any
) -> TrialOutcome:
    """The end of a measured trial in *folder* on *launch*."""
    end = StopRequest(), job_kind("measure")
    return TrialMonitor(launch, folder, ranks, limits or TimeLimits(), *end, **options).wait()
