"""``pretended``: no training, for the launcher ``pretend``, which starts no process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class Pretended(Strategy):
    """What the launcher ``pretend`` makes up, to try a suite without torch; it trains nothing."""

    packages: ClassVar[tuple[str, ...]] = ()

    does: Literal["works", "also-works", "raises", "hangs", "lacks"] = "works"
    """What becomes of a trial: measured (twice, for two cases), rank 1 fails, no rank ever ends, or it
    can't run on this machine."""

    @property
    def engine_class(self) -> str:
        return "None"

    @property
    def label(self) -> str:
        return "pretended" if self.does == "works" else f"pretended+{self.does}"

    def problem(self, case: Case, machine: Machine) -> str | None:
        return "pretended to be unsupported on this machine" if self.does == "lacks" else None

    def build(self, context: RankContext) -> Engine:
        raise NotImplementedError("strategy pretended trains nothing; use it with launcher: pretend")
