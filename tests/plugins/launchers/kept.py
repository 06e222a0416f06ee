from __future__ import annotations

from dataclasses import dataclass

from keeping import KeptSite

from distbench.launchers.base import Site
from distbench.launchers.local import Local


@dataclass(frozen=True)
class Kept(Local):
    """Starts ranks as ``local`` does, from warm parents that the test session keeps."""

    def open(self, run_id: str) -> Site:
        return KeptSite()
