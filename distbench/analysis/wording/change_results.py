"""Effect of changed settings on the speed of a case, as sentences and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distbench.analysis.choice import Candidate
from distbench.analysis.run import RunAnalysis
from distbench.analysis.statistics.intervals import ConfidenceInterval
from distbench.core.units import format_ratio_interval
from distbench.plan.setting_changes import ChangeTrials, SettingChange


@dataclass(frozen=True)
class ChangeResult:
    """Speed of a case with one changed setting, relative to the case without it."""

    change: SettingChange
    ratio: ConfidenceInterval | None
    """Throughput with the change over throughput without it, in the same rounds; None: unknown."""
    reason: str = ""
    """Reason why ``ratio`` is None, or why the changed case may not be recommended."""

    @property
    def helped(self) -> bool | None:
        """True: measurably faster, and the same training. False: not. None: unknown."""
        if self.ratio is None or self.ratio.half_log_width is None or self.reason:
            return None
        return self.ratio.low > 1

    @property
    def sentence(self) -> str:
        """``ddp.bucket_cap_mb: 100: 1.12x (1.05 to 1.20) as fast: it helps``."""
        if self.ratio is None:
            return f"{self.change.text}: {self.reason}"
        value, low, high = format_ratio_interval(self.ratio.value, self.ratio.low, self.ratio.high)
        spread = "" if self.ratio.half_log_width is None else f" ({low} to {high})"
        return f"{self.change.text}: {value}x{spread} as fast: {self.reason or self._word}"

    @property
    def _word(self) -> str:
        if self.helped is None:
            return "the noise is unknown, because no case was measured twice"
        assert self.ratio is not None
        if self.helped:
            return "it helps"
        return "it is slower" if self.ratio.high < 1 else "no measurable difference"

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON types."""
        ratio = self.ratio
        return {
            "key": self.change.key,
            "value": self.change.value,
            "speedup": ratio and ratio.value,
            "speedup_low": ratio.low if ratio and ratio.half_log_width is not None else None,
            "speedup_high": ratio.high if ratio and ratio.half_log_width is not None else None,
            "helped": self.helped,
            "reason": self.reason or None,
        }


def change_results(run: RunAnalysis, trials: ChangeTrials) -> list[ChangeResult]:
    """Result of each change of *trials*, which *run* measured; those that could not be planned come last."""
    candidates = {one.id: one for one in run.candidates}
    base = candidates[trials.base]
    found = [_result(change, candidates[case_id], base) for case_id, change in trials.changes.items()]
    return [*found, *_rejected(trials.rejected)]


def _rejected(reasons: Mapping[SettingChange, str]) -> list[ChangeResult]:
    return [ChangeResult(change, None, f"not possible: {why}") for change, why in reasons.items()]


def _result(change: SettingChange, one: Candidate, base: Candidate) -> ChangeResult:
    if base.speed is None:
        return ChangeResult(change, None, f"nothing to compare with: {base.exclusion_reason or base.unknown}")
    if one.speed is None:
        return ChangeResult(change, None, one.exclusion_reason or one.unknown)
    return ChangeResult(change, one.speed.ratio(base.speed), one.exclusion_reason or base.exclusion_reason)
