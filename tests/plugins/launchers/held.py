from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from distbench.launchers.base import Exit, Handle, Launch, Launcher, Site
from distbench.launchers.pretend import Pretend


@dataclass(frozen=True)
class Held(Launcher):
    """Pretends as ``pretend`` does, but holds the trials of one round while there is a certain file."""

    file: str
    """No trial of the round ends while this file exists."""
    round: int = 1
    """The round that is held, from 0 on."""

    def commands(self, launch: Launch) -> list[list[str]]:
        return []

    def open(self, run_id: str) -> Site:
        return _HeldSite(self, Pretend().open(run_id))


class _HeldSite(Site):
    is_here = False

    def __init__(self, options: Held, site: Site) -> None:
        self._options, self._site = options, site

    def launch(self, launch: Launch) -> Handle:
        handle = self._site.launch(launch)
        is_held = launch.entry == "rank" and launch.file.parent.name == str(self._options.round)
        return _HeldTrial(handle, Path(self._options.file)) if is_held else handle

    def close(self) -> None:
        self._site.close()


class _HeldTrial(Handle):
    def __init__(self, handle: Handle, file: Path) -> None:
        self._handle, self._file = handle, file

    def wait(self, seconds: float) -> list[Exit]:
        if self._file.exists():
            time.sleep(seconds)
            return []
        return self._handle.wait(seconds)

    def signal(self, number: int) -> None:
        self._handle.signal(number)

    def stop(self) -> None:
        self._handle.stop()
