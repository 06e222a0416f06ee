"""What a gate says: of each number, of each case, and as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Word = Literal[
    "pass", "improved", "inconclusive", "incomparable", "regressed", "missing", "invalid", "broken"
]

FORMAT = 1
"""Of what ``Result.to_json`` returns."""

_GRAVITY: tuple[Word, ...] = (
    "pass",
    "improved",
    "inconclusive",
    "incomparable",
    "regressed",
    "missing",
    "invalid",
    "broken",
)
FAILING: tuple[Word, ...] = ("regressed", "missing", "invalid", "broken")
"""Words that end a gate with exit code 1."""
INFRASTRUCTURE, INCOMPARABLE, INCONCLUSIVE, FAILED = 4, 5, 3, 1
"""Exit codes; 0: pass or improved, 2: usage."""


@dataclass(frozen=True)
class Finding:
    """The verdict on one number of one case."""

    metric: str
    """tokens_per_s, efficiency, peak_memory, comm_bytes, comm_calls, equivalence, convergence or trial."""
    word: Word
    said: str
    """One sentence: how much, how sure, and what to do where that is not plain."""
    limit: float | None = None
    """How much worse it may be, as a fraction."""
    ratio: float | None = None
    """Cost of the candidate over that of the baseline, above 1 is worse: seconds of a step, reciprocal
    of the efficiency, bytes, calls."""
    low: float | None = None
    """Lower end of the interval of 95 %; None: it is counted, not measured."""
    high: float | None = None
    pairs: int = 0
    """Pairs of trials behind it."""
    baseline: float | None = None
    """Median of the baseline, in ``unit``."""
    candidate: float | None = None
    unit: str = ""
    needed: int = 0
    """Pairs that a verdict would take, where it is inconclusive."""
    deviation: float | None = None
    """Standard deviation of the logarithm of a pair's ratio."""
    notable: bool = False
    """Whether it is told although it passes: it was flagged once, or an efficiency fell for a good reason."""


@dataclass(frozen=True)
class CaseVerdict:
    """The verdict on one case."""

    case: str
    """Name of the candidate's case."""
    label: str
    world_size: int
    findings: tuple[Finding, ...]
    cause: str = ""
    """Where a loss of pace comes from, as far as the numbers tell."""
    notes: tuple[str, ...] = ()
    """What else was not the same in both arms."""
    minutes_per_pair: float = 0.0
    first: tuple[Finding, ...] = ()
    """What the first series said of a case that was run a second time to confirm it."""

    @property
    def word(self) -> Word:
        """The gravest of its findings."""
        return gravest([finding.word for finding in self.findings])

    @property
    def said(self) -> str:
        """The sentences of the gravest findings."""
        return "; ".join(f"{one.metric}: {one.said}" for one in self.findings if one.word == self.word)


def gravest(words: Sequence[Word]) -> Word:
    """Return the gravest of *words*; of none: incomparable, for silence never passes."""
    return max(words, key=_GRAVITY.index, default="incomparable")


@dataclass(frozen=True)
class Result:
    """What a gate found."""

    gate_id: str
    suite: str
    baseline: str
    """What the arm is: a ref, an interpreter, changed values."""
    candidate: str
    cases: tuple[CaseVerdict, ...]
    environment: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Facts of the machine and the packages that differ: baseline, candidate."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Case that is new, or can't run here in either arm -> why."""
    notes: tuple[str, ...] = ()
    """What of the rules could not be judged, and why."""
    minutes: float = 0.0
    state: Literal["finished", "interrupted"] = "finished"
    folder: str = ""

    @property
    def word(self) -> Word:
        """The gravest word of the cases."""
        return gravest([case.word for case in self.cases])

    def exit_code(self, inconclusive: Literal["pass", "fail", "tell"] = "tell") -> int:
        """Return 0 for pass or improved, 1 for what fails, 5 for incomparable, 3 for inconclusive.

        Args:
            inconclusive: pass counts it as 0, fail as 1.
        """
        words = {case.word for case in self.cases}
        if words & set(FAILING):
            return FAILED
        if "incomparable" in words or not words:
            return INCOMPARABLE
        if "inconclusive" in words:
            return {"pass": 0, "fail": FAILED, "tell": INCONCLUSIVE}[inconclusive]
        return 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON types, its format number first."""
        plain = dataclasses.asdict(self)
        for case, data in zip(self.cases, plain["cases"], strict=True):
            data |= {"word": case.word, "said": case.said}
        return {"format": FORMAT, "word": self.word, **plain}
