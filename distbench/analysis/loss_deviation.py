"""What the losses of timed trials are held against, and what that comes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distbench.analysis.rounding_bounds import INSENSITIVE_LIMIT
from distbench.core.units import format_count

SAME_LOSSES = "same losses"
DIFFERENT_TRAINING = "another training"
CASES_DISAGREE = "cases disagree"
"""Word of all of several cases of which none can be named as the odd one."""
NOT_COMPARED = "not compared"
NOT_COMPARABLE = "not comparable"
"""Word of a case whose model draws random numbers while it trains, whatever its strategy."""
DIFFERENT_BY_DESIGN = "differs by design"
"""Word of a case that is beyond rounding only from the step on in which its strategy begins to differ."""
INDISTINGUISHABLE = "not told apart"
"""Word of a case that is further away than rounding usually leads, in a training that it leads as far."""


@dataclass(frozen=True)
class LossDeviation:
    """Where a trial is first beyond what rounding explains; if it never is, where it is closest to that."""

    round: int
    step: int
    """From 0 on, the warm-up included."""
    loss: float
    expected: float
    of_limit: float
    """Ratio over the allowed deviation; above 1 it is not rounding."""


@dataclass(frozen=True)
class LossComparison:
    """What is found of one case."""

    word: str
    reason: str = ""
    """Beside a deviation: what it is held against, or why nothing can be said."""
    trials: int = 0
    """Trials that were compared."""
    trials_beyond: int = 0
    """Those of them that are beyond rounding."""
    largest_deviation: LossDeviation | None = None
    """The first deviation beyond rounding of any trial; if there is none, the furthest."""
    reference: str = ""
    """Id of the case that it is held against; empty: what another kind of job vouches for."""
    sensitive_steps: int = 0
    """Steps, from the first on, in which an error of ``BLUNT`` would have been seen."""
    design_reason: str = ""
    """What makes it another training by design, if that is the word."""
    remark: str = ""
    """What the losses of no case tell."""

    @property
    def is_different(self) -> bool:
        """Whether the case is not the training that it should be, or may not be."""
        return self.word in (DIFFERENT_TRAINING, CASES_DISAGREE)

    @property
    def limit_share(self) -> float:
        """The largest fraction of the allowed deviation that any step takes."""
        return self.largest_deviation.of_limit if self.largest_deviation else 0.0

    def sentence(self) -> str:
        """The finding with what it rests on."""
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
            sight = f"an error of {INSENSITIVE_LIMIT:.0%} would be seen in the first {steps}"
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
        """Plain JSON types."""
        worst = vars(self.largest_deviation) if self.largest_deviation else None
        told = {"reason": self.reason, "trials": self.trials, "beyond": self.trials_beyond}
        return {
            **told,
            "of_limit": self.limit_share if worst else None,
            "worst": worst,
            "sharp": self.sensitive_steps,
        }
