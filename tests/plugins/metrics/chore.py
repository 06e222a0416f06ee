from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import ClassVar

from distbench.metrics.base import Column, Metric


@dataclass(frozen=True)
class Chore(Metric):
    """Measures nothing; it is prepared by a command of the shell."""

    columns: ClassVar[tuple[Column, ...]] = ()

    command: str = ":"

    def prepare(self) -> None:
        subprocess.run(self.command, shell=True, check=True)
