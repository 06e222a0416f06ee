from __future__ import annotations

from dataclasses import dataclass

from distbench.launchers.base import Launcher, LaunchSession, LaunchSpec
from distbench.launchers.local import Local


@dataclass(frozen=True)
class Echo(Launcher):
    """Starts ranks as ``local`` does, under another name."""

    def commands(self, launch: LaunchSpec) -> list[list[str]]:
        return [["echo", str(launch.instructions)]]

    def open_session(self, run_id: str) -> LaunchSession:
        return Local().open_session(run_id)
