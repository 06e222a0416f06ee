from __future__ import annotations

from dataclasses import dataclass

from distbench.ipc.launch_spec import LaunchSpec
from distbench.launchers.base import Launcher, LaunchSession
from distbench.launchers.local import Local


@dataclass(frozen=True)
class Echo(Launcher):
    """Starts ranks as ``local`` does, under another name."""

    def commands(self, spec: LaunchSpec) -> list[list[str]]:
        return [["echo", str(spec.instructions)]]

    def open_session(self, run_id: str) -> LaunchSession:
        return Local().open_session(run_id)
