"""Predictions: a value with its interval, and what it is a sum of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from distbench.core.units import format_duration, format_number

Term = Literal["compute", "communication", "bubble", "update", "host"]
"""Part of a step: forward and backward pass with what they recompute, collectives that computation does not
hide, waiting for other pipeline stages, the optimizer's update, and launches that keep a GPU waiting."""


@dataclass(frozen=True)
class PredictedValue:
    """Predicted value with an interval that should contain the measured one in 90 % of cases."""

    value: float
    low: float
    high: float

    @classmethod
    def with_relative_sd(cls, value: float, relative_sd: float) -> PredictedValue:
        """*value* whose logarithm is normal with the standard deviation *relative_sd*."""
        factor = math.exp(min(NORMAL_95 * relative_sd, MAX_LOG_EXPONENT))
        return cls(value, value / factor, value * factor)

    @property
    def duration_text(self) -> str:
        """These seconds with their interval, for people: ``41 (35 to 48) ms``."""
        unit, scale = ("s", 1.0) if self.value >= _LONG_S else ("ms", 1000.0)
        half = scale * (self.high - self.low) / 2
        texts = [format_number(scale * each, half) for each in (self.value, self.low, self.high)]
        return f"{texts[0]} ({texts[1]} to {texts[2]}) {unit}"

    @property
    def bound_text(self) -> str:
        """The low end of these seconds as the least that something takes, for people: ``at least 35 ms``."""
        return f"at least {format_duration(self.low)}"

    def rate_of(self, amount: float) -> PredictedValue:
        """*amount* per second, if this is a number of seconds."""
        return PredictedValue(amount / self.value, amount / self.high, amount / self.low)


@dataclass(frozen=True)
class StepPrediction:
    """Predicted time of an optimizer step on the slowest rank."""

    terms: Mapping[Term, float]
    """Seconds of each part; their sum is the value of ``seconds``."""
    seconds: PredictedValue
    source: Literal["probe", "data sheet"]
    """Where the rates are from: measured on the machine, or published for its type."""
    unpredicted_part: str = ""
    """Part of the step that has no rate, so that it takes at least this time; empty: there is none."""


@dataclass(frozen=True)
class MemoryPrediction:
    """Predicted peak memory of a rank in a step: tensors alive at once, as ``memory_peak`` counts."""

    kinds: Mapping[str, float]
    """Bytes by kind at the peak: ``parameters``, ``gradients``, ``optimizer_state``, ``master`` as in
    ``Strategy.model_states``, and ``activations``, ``logits``, ``gathered``, ``buckets``."""
    peak: PredictedValue
    """Sum of ``kinds``, in bytes."""


_LONG_S = 10.0
"""Seconds from which on people read seconds, not milliseconds."""
MAX_LOG_EXPONENT = 100.0
"""Largest half width of an interval of a logarithm; a wider one would say nothing."""
NORMAL_95 = 1.6448536269514722
"""Quantile of the normal distribution at 95 %: with its negative it bounds the middle 90 %."""
