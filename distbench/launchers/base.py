"""The seam of launchers: start the ranks of a trial, tell what they do, stop all of them.

Results come back as files in the trial's folder (``distbench.trial_files``), never through
the launcher.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from distbench.env import Machine


@dataclass(frozen=True)
class Launch:
    """One trial as a launcher sees it."""

    trial_file: Path
    """The JSON file that tells each rank what to do; logs and results go to its folder."""
    processes: int
    environment: Mapping[str, str]
    """Variables for every rank, besides the inherited ones."""
    imports: Sequence[str] = ()
    """Modules that a warm parent may import before it forks the ranks."""


@dataclass(frozen=True)
class Exit:
    """A rank that has ended."""

    rank: int
    code: int
    """Exit code; negative: the signal that ended it."""
    at: float
    """``time.time()`` when the end was seen."""


class Handle(ABC):
    """A launched trial."""

    @abstractmethod
    def wait(self, seconds: float) -> list[Exit]:
        """Wait until a rank ends or *seconds* have passed; return the ranks that ended since."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send signal *number* to every rank that is alive (SIGUSR1: dump stacks to the log)."""

    @abstractmethod
    def stop(self) -> None:
        """End every process of the trial, whatever it takes, and return when none is left."""


class Launcher(ABC):
    """A way to start processes. A frozen dataclass: its fields are its options in YAML."""

    def problem(self, processes: int, machine: Machine) -> str | None:
        """Return why *processes* ranks can't be started here, or None."""
        return None

    @abstractmethod
    def commands(self, launch: Launch) -> list[list[str]]:
        """Return exactly what ``launch`` would start (a dry run), one argv a process started."""

    @abstractmethod
    def launch(self, launch: Launch) -> Handle:
        """Start the ranks of *launch*."""

    def close(self) -> None:  # noqa: B027
        """End what the launcher keeps between trials."""


RankPhase = Literal["start", "build", "warmup", "time", "profile", "done"]

PLUGIN_BASE = Launcher
