from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from distbench.case import Case
from distbench.env import Machine
from distbench.strategies.base import Engine, Setting, Strategy


@dataclass(frozen=True)
class Pretended(Strategy):
    """A strategy that needs no torch, for a launcher that starts nothing."""

    packages: ClassVar[tuple[str, ...]] = ()

    does: Literal["works", "also-works", "raises", "hangs", "lacks"] = "works"

    @property
    def engine(self) -> str:
        return "None"

    @property
    def label(self) -> str:
        return self.does

    def problem(self, case: Case, machine: Machine) -> str | None:
        return "this machine has no wand" if self.does == "lacks" else None

    def build(self, setting: Setting) -> Engine:
        raise NotImplementedError
