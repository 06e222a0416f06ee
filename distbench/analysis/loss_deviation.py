"""Results of comparing the losses of timed trials with a reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distbench.analysis.rounding_bounds import INSENSITIVE_LIMIT
from distbench.core.units import format_count

SAME_LOSSES = "same losses"
DIFFERENT_TRAINING = "trains differently"
CASES_DISAGREE = "cases disagree"
"""Word of several cases that disagree if none of them can be identified as the wrong one."""
NOT_COMPARED = "not compared"
NOT_COMPARABLE = "not comparable"
"""Word of a case whose model draws random numbers during training, whatever its strategy."""
DIFFERENT_BY_DESIGN = "differs by design"
"""Word of a case that exceeds rounding only after the step from which its strategy differs by design."""
INDISTINGUISHABLE = "inconclusive"
"""Word of a case that deviates more than rounding usually causes, in a training in which rounding alone
deviates as much."""


@dataclass(frozen=True)
class LossDeviation:
    """First step of a trial beyond rounding, or the step closest to it if there is none."""

    round: int
    step: int
    """From 0 on, warm-up included."""
    loss: float
    expected: float
    of_limit: float
    """Ratio to the allowed deviation; above 1 it is not rounding."""


@dataclass(frozen=True)
class LossComparison:
    """Result of the loss comparison of one case."""

    word: str
    reason: str = ""
    """Name of the reference if there is a deviation; otherwise why nothing can be concluded."""
    trials: int = 0
    """Trials that were compared."""
    trials_beyond: int = 0
    """Number of these trials that are beyond rounding."""
    largest_deviation: LossDeviation | None = None
    """First deviation beyond rounding of any trial; if there is none, the largest."""
    reference: str = ""
    """Id of the reference case; empty: a reference from another kind of job."""
    sensitive_steps: int = 0
    """Steps, from the first on, in which an error of ``INSENSITIVE_LIMIT`` would have been detected."""
    design_reason: str = ""
    """Reason why the strategy changes the training, for the word *differs by design*."""
    remark: str = ""
    """Limitation of the losses that applies to all cases of a group."""

    @property
    def is_different(self) -> bool:
        """True if the case trains differently than it should, or may."""
        return self.word in (DIFFERENT_TRAINING, CASES_DISAGREE)

    @property
    def limit_share(self) -> float:
        """Largest fraction of the allowed deviation in any step."""
        return self.largest_deviation.of_limit if self.largest_deviation else 0.0

    def sentence(self) -> str:
        """The finding with its evidence, as a sentence."""
        worst = self.largest_deviation
        if self.word in (NOT_COMPARED, NOT_COMPARABLE, INDISTINGUISHABLE) or worst is None:
            return f"{self.word}: {self.reason}"
        if self.word == DIFFERENT_BY_DESIGN:
            return (
                f"{self.word}: at step {worst.step} the timed training has a loss of {worst.loss:.6g} and "
                f"{self.reason} {worst.expected:.6g}; {self.design_reason}"
            )
        if self.word == SAME_LOSSES:
            steps = format_count(self.sensitive_steps, "step")
            sight = f"an error of {INSENSITIVE_LIMIT:.0%} would be detected in the first {steps}"
            return f"{self.word} as {self.reason} ({worst.of_limit:.2f} of the allowed deviation; {sight})"
        trials = (
            "" if self.trials_beyond == self.trials else f" in {self.trials_beyond} of {self.trials} trials"
        )
        return (
            f"{self.word}{trials}: from step {worst.step} on, where the timed training has a loss of "
            f"{worst.loss:.6g} and {self.reason} {worst.expected:.6g}, {worst.of_limit:.2g} times the "
            "deviation that rounding explains"
        )

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON types."""
        worst = vars(self.largest_deviation) if self.largest_deviation else None
        told = {"reason": self.reason, "trials": self.trials, "beyond": self.trials_beyond}
        return {
            **told,
            "of_limit": self.limit_share if worst else None,
            "worst": worst,
            "sharp": self.sensitive_steps,
        }
