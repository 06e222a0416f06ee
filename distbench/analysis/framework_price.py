"""Price of a framework: its step beside the native step of the same case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.statistics.intervals import ConfidenceInterval
from distbench.core.case import NATIVE_ENGINE, CaseField

_STEP = "step_s"
_ENGINE: tuple[CaseField, ...] = ("engine",)


@dataclass(frozen=True)
class FrameworkPrice:
    """A case whose steps a framework takes, beside the same case with native steps."""

    row: CaseSummary
    native: CaseSummary | None
    """The same case with native steps; None: the run has not measured it."""
    absence: str = ""
    """Reason why there is no price."""

    @property
    def ratio(self) -> ConfidenceInterval | None:
        """Step of the framework over the native step; None: unknown."""
        if self.absence or self.native is None:
            return None
        mine, theirs = self.row.values[_STEP].interval, self.native.values[_STEP].interval
        return mine.ratio(theirs) if mine and theirs else None

    @property
    def seconds(self) -> tuple[float, float, float] | None:
        """Seconds that the framework adds to a step, and the ends of their 95% interval; None: unknown.

        The ends are those of the ratio, times the native step: what slows down both cancels.
        """
        if self.ratio is None or self.native is None:
            return None
        step = self.native.values[_STEP].value
        low, high = (step * (end - 1) for end in (self.ratio.low, self.ratio.high))
        return step * (self.ratio.value - 1), low, high

    @property
    def is_settled(self) -> bool:
        """True if the interval leaves no doubt whether the framework costs time or saves it."""
        if self.seconds is None or self.ratio is None or self.ratio.half_log_width is None:
            return False
        _, low, high = self.seconds
        return low > 0 or high < 0


def framework_prices(cases: Sequence[CaseSummary]) -> list[FrameworkPrice]:
    """Prices of all measured cases whose steps a framework takes."""
    native = {row.case.work_key(_ENGINE): row for row in cases if row.case.engine == NATIVE_ENGINE}
    framed = [row for row in cases if row.measured and row.case.engine != NATIVE_ENGINE]
    return [_price(row, native.get(row.case.work_key(_ENGINE))) for row in framed]


def _price(row: CaseSummary, native: CaseSummary | None) -> FrameworkPrice:
    if native is None or not native.measured:
        return FrameworkPrice(row, None, "the same case with engine: native was not measured")
    for side in (row, native):
        if side.degraded:
            return FrameworkPrice(row, native, f"{side.case.name} was measured on a noisy machine")
        if side.differs:
            return FrameworkPrice(row, native, f"{side.case.name} is not the same training")
        if not side.positive_trials(_STEP):
            return FrameworkPrice(row, native, f"{side.case.name} has no step time")
    return FrameworkPrice(row, native)
