from __future__ import annotations

from dataclasses import dataclass

from distbench.launchers.base import LaunchSession
from distbench.launchers.local import Local
from support.fork_servers import KeptSite


@dataclass(frozen=True)
class Kept(Local):
    """Starts ranks as ``local`` does, from fork servers that the test session keeps."""

    def open_session(self, run_id: str) -> LaunchSession:
        return KeptSite()
