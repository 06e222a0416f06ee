from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from distbench.case import Case
from distbench.metrics.base import Column, Metric, Sampler, Trial


@dataclass(frozen=True)
class Clumsy(Metric):
    """Raises on the parent's side, or gives it what can't be stored."""

    columns: ClassVar[tuple[Column, ...]] = (
        Column("clumsy", "", "higher", "first", "Never a number that can be stored."),
    )
    at: str = "summary"
    """summary, sampler or value."""

    def summary(self, trial: Trial) -> Mapping[str, Any]:
        if self.at == "summary":
            raise ZeroDivisionError("a metric divides by zero")
        return {"clumsy": {1}} if self.at == "value" else {}

    def sampler(self, case: Case) -> Sampler | None:
        if self.at == "sampler":
            raise RuntimeError("a sampler can't start")
        return None
