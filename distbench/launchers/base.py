"""The seam of launchers: start the ranks of a trial, tell what they do, stop all of them.

Results come back as files in the trial's folder (``distbench.trial_files``), never through
the launcher.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from distbench.env import Machine


class LaunchError(Exception):
    """The processes of a trial can't be started; a result of the case, not the end of the run."""


@dataclass(frozen=True)
class Place:
    """With which Python, and from which folder, the processes of a run are started."""

    python: str = sys.executable
    """Path of the interpreter; it finds distbench and what the strategies import."""
    folder: str | None = None
    """Working directory, from which a model of one's own is imported; None: that of the command."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that rule over those of the strategies and the inherited ones."""


HERE = Place()
"""The Python and the folder of the command itself."""


@dataclass(frozen=True)
class Launch:
    """One trial, or one preparation, as a launcher sees it."""

    entry: Literal["rank", "prepare"]
    """The command of ``python -m distbench.worker`` that each process runs."""
    file: Path
    """The JSON file that tells it what to do; logs and results go to the file's folder."""
    processes: int
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for every process, besides the inherited ones."""
    imports: Sequence[str] = ()
    """Modules that a warm parent may import before it forks the ranks."""
    leftovers: Sequence[str] = ()
    """Glob patterns of files to remove afterwards; ``{port}`` stands for ``MASTER_PORT``."""
    place: Place = HERE


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


class Site(ABC):
    """Where the trials of one run are started, one after another."""

    @abstractmethod
    def launch(self, launch: Launch) -> Handle:
        """Start the processes of *launch*.

        Raises:
            LaunchError: they can't be started.
        """

    @abstractmethod
    def close(self) -> None:
        """End what is kept between trials; afterwards no process of the run is left."""


class Launcher(ABC):
    """A way to start processes. A frozen dataclass: its fields are its options in YAML."""

    def problem(self, processes: int, machine: Machine) -> str | None:
        """Return why *processes* ranks can't be started here, or None."""
        return None

    @abstractmethod
    def commands(self, launch: Launch) -> list[list[str]]:
        """Return exactly what ``launch`` would start (a dry run), one argv a process started."""

    @abstractmethod
    def open(self, run_id: str) -> Site:
        """Begin a run: return what starts its trials. Every process carries *run_id*."""


PLUGIN_BASE = Launcher
