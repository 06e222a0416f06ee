"""What the losses of timed trials are held against, and what that comes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distbench.analysis.rounding_bounds import BLUNT
from distbench.core.units import count_text

SAME = "same losses"
DIFFERS = "another training"
DISAGREE = "cases disagree"
"""Word of all of several cases of which none can be named as the odd one."""
UNKNOWN = "not compared"
NOT_COMPARABLE = "not comparable"
"""Word of a case whose model draws random numbers while it trains, whatever its strategy."""
BY_DESIGN = "differs by design"
"""Word of a case that is beyond rounding only from the step on in which its strategy begins to differ."""
BLURRED = "not told apart"
"""Word of a case that is further away than rounding usually leads, in a training that it leads as far."""


@dataclass(frozen=True)
class Deviation:
    """Where a trial is first beyond what rounding explains; if it never is, where it is closest to that."""

    round: int
    step: int
    """From 0 on, the warm-up included."""
    loss: float
    expected: float
    of_limit: float
    """Ratio over the allowed deviation; above 1 it is not rounding."""


@dataclass(frozen=True)
class TimedLosses:
    """What is found of one case."""

    word: str
    reason: str = ""
    """Beside a deviation: what it is held against, or why nothing can be said."""
    trials: int = 0
    """Trials that were compared."""
    beyond: int = 0
    """Those of them that are beyond rounding."""
    worst: Deviation | None = None
    """The first deviation beyond rounding of any trial; if there is none, the furthest."""
    reference: str = ""
    """Id of the case that it is held against; empty: what another kind of job vouches for."""
    sharp: int = 0
    """Steps, from the first on, in which an error of ``BLUNT`` would have been seen."""
    design: str = ""
    """What makes it another training by design, if that is the word."""
    remark: str = ""
    """What the losses of no case tell."""

    @property
    def is_other(self) -> bool:
        """Whether the case is not the training that it should be, or may not be."""
        return self.word in (DIFFERS, DISAGREE)

    @property
    def furthest(self) -> float:
        """The largest fraction of the allowed deviation that any step takes."""
        return self.worst.of_limit if self.worst else 0.0

    def sentence(self) -> str:
        """The finding with what it rests on."""
        worst = self.worst
        if self.word in (UNKNOWN, NOT_COMPARABLE, BLURRED) or worst is None:
            return f"{self.word}: {self.reason}"
        if self.word == BY_DESIGN:
            return (
                f"{self.word}: at step {worst.step} the timed training has a loss of {worst.loss:.6g} and "
                f"{self.reason} {worst.expected:.6g}; {self.design}"
            )
        if self.word == SAME:
            sight = f"an error of {BLUNT:.0%} would be seen in the first {count_text(self.sharp, 'step')}"
            return f"{self.word} as {self.reason} ({worst.of_limit:.2f} of the allowed deviation; {sight})"
        trials = "" if self.beyond == self.trials else f" in {self.beyond} of {self.trials} trials"
        return (
            f"{self.word}{trials}: from step {worst.step} on, where the timed training has a loss of "
            f"{worst.loss:.6g} and {self.reason} {worst.expected:.6g}, {worst.of_limit:.2g} times the "
            "deviation that rounding explains"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        worst = vars(self.worst) if self.worst else None
        told = {"reason": self.reason, "trials": self.trials, "beyond": self.beyond}
        return {**told, "of_limit": self.furthest if worst else None, "worst": worst, "sharp": self.sharp}
