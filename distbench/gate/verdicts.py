"""Verdicts of a gate: on each number, on each case, and on the whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from distbench.analysis.change_attribution import Attribution, attribution_json
from distbench.gate.wording import COST_WORDS, describe_change
from distbench.run import StopReason

GateVerdict = Literal[
    "pass", "improved", "inconclusive", "incomparable", "regressed", "missing", "invalid", "broken"
]
"""Verdicts from light to grave."""

RESULT_FORMAT = 1
"""Format number of ``GateResult.to_json``."""

FAILING_VERDICTS: tuple[GateVerdict, ...] = ("regressed", "missing", "invalid", "broken")
"""Verdicts that make a gate exit with code 1."""
_NEED_CONFIRMATION: tuple[GateVerdict, ...] = ("regressed", "improved")
"""Verdicts that need two series, if they are based on pairs."""
EXIT_INCOMPARABLE, EXIT_INCONCLUSIVE, EXIT_FAILED = 5, 3, 1
"""Exit codes; 0: pass or improved, 2: usage error, 4: infrastructure."""


@dataclass(frozen=True)
class MetricFinding:
    """The verdict on one number of one case."""

    metric: str
    """tokens_per_s, efficiency, peak_memory, startup, comm_bytes, comm_calls, equivalence, convergence or
    trial."""
    word: GateVerdict
    said: str
    """One sentence: size of the change, certainty, and the next step where that is not obvious."""
    limit: float | None = None
    """Allowed worsening, as a fraction."""
    ratio: float | None = None
    """Cost of the candidate over that of the baseline; above 1 is worse. A cost is seconds per step, the
    reciprocal of the efficiency, bytes or calls."""
    low: float | None = None
    """Lower end of the 95% interval; None: the number is counted, not measured."""
    high: float | None = None
    pairs: int = 0
    """Pairs of trials it is based on."""
    baseline: float | None = None
    """Median of the baseline, in ``unit``."""
    candidate: float | None = None
    unit: str = ""
    needed: int = 0
    """Pairs needed for a verdict, if it is inconclusive."""
    deviation: float | None = None
    """Standard deviation of the logarithm of a pair's ratio."""
    notable: bool = False
    """True to report it although it passes: it was flagged once, or efficiency fell for a good reason."""


@dataclass(frozen=True)
class CaseVerdict:
    """The verdict on one case."""

    case: str
    """Name of the candidate's case."""
    label: str
    world_size: int
    findings: tuple[MetricFinding, ...]
    cause: str = ""
    """Likely cause of a slowdown, as far as the numbers show."""
    notes: tuple[str, ...] = ()
    """Other differences between the arms."""
    minutes_per_pair: float = 0.0
    first: tuple[MetricFinding, ...] = ()
    """Findings of the first series, if a second was run to confirm them."""
    split: Attribution | None = None
    """What the machine explains of a changed step, or why that is unknown; None: not two probes."""

    @property
    def word(self) -> GateVerdict:
        """Worst verdict of its findings."""
        return worst_verdict([finding.word for finding in self.findings])

    @property
    def said(self) -> str:
        """Sentences of the worst findings."""
        return "; ".join(f"{item.metric}: {item.said}" for item in self.findings if item.word == self.word)


def worst_verdict(words: Sequence[GateVerdict]) -> GateVerdict:
    """Return the worst verdict; incomparable if nothing was measured, since that must not pass."""
    return max(words, key=get_args(GateVerdict).index, default="incomparable")


def is_flagged(finding: MetricFinding) -> bool:
    """True if a finding needs a second series: it is judged over pairs, and beyond its tolerance."""
    return finding.word in _NEED_CONFIRMATION and finding.low is not None


def mark_unconfirmed(finding: MetricFinding) -> MetricFinding:
    """Finding that was flagged with no time left for a second series."""
    if not is_flagged(finding):
        return finding
    why = f"flagged ({finding.said}), but the gate stopped before a fresh series could confirm it"
    if finding.word == "improved":
        return replace(finding, word="pass", said=why, notable=True)
    return replace(finding, word="inconclusive", said=why)


def confirm(first: list[MetricFinding], second: list[MetricFinding]) -> list[MetricFinding]:
    """Combine the findings of two series: a flagged finding stands only if the second agrees."""
    repeated = {finding.metric: finding for finding in second}
    combined = []
    for finding in first:
        repeat = repeated.get(finding.metric)
        is_open = is_flagged(finding) and repeat is not None
        combined.append(_combine(finding, repeat) if is_open and repeat else finding)
    # a trial that failed in the second series fails the case just the same
    return combined + [finding for finding in second if finding.metric == "trial"]


def _combine(first: MetricFinding, second: MetricFinding) -> MetricFinding:
    """Combine two findings on one number; *first* was flagged."""
    # the numbers of the second: the first was selected for being large, so it overstates the change
    if second.word == first.word:
        return replace(second, said=f"confirmed by a fresh series: {second.said}; first: {first.said}")
    why = f"flagged once ({first.said}) and not confirmed by a fresh series: {second.said}"
    if first.word == "regressed" and (first.high or 0) > (second.high or 0):
        # the smaller second value may be as much due to chance as the first
        second = replace(second, high=first.high)
        why += (
            "; the first series can't exclude up to "
            f"{describe_change(first.high or 1, COST_WORDS[first.metric])}"
        )
    word: GateVerdict = second.word
    if second.word in _NEED_CONFIRMATION and second.low is not None:
        # one better and one worse
        word = "inconclusive"
    elif first.word == "improved" and second.word == "inconclusive":
        # an uncertain gain is no reason to measure more
        word = "pass"
    return replace(second, word=word, said=why, notable=True)


@dataclass(frozen=True)
class GateResult:
    """Result of a gate."""

    gate_id: str
    suite: str
    baseline: str
    """Title of the arm: a revision, an environment or changed values."""
    candidate: str
    cases: tuple[CaseVerdict, ...]
    environment: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Facts about machine and packages that differ: baseline, candidate."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Case that is new, or can't run here in either arm -> reason."""
    notes: tuple[str, ...] = ()
    """Rules that could not be applied, with reasons."""
    minutes: float = 0.0
    stopped: StopReason = ""
    """Reason for an early stop; empty if there was none."""
    folder: str = ""
    since: GateResult | None = None
    """Result against an older, pinned baseline, if one was given: it shows the sum of many small losses."""

    @property
    def state(self) -> Literal["finished", "interrupted"]:
        """``interrupted`` if it stopped early, otherwise ``finished``."""
        return "interrupted" if self.stopped else "finished"

    @property
    def word(self) -> GateVerdict:
        """Worst verdict of its cases."""
        return worst_verdict([case.word for case in self.cases])

    def exit_code(self, inconclusive: Literal["pass", "fail", "tell"] = "tell") -> int:
        """Exit code: 0 pass or improved, 1 failed, 5 incomparable; inconclusive: 3, or 0 or 1 on request."""
        words = {case.word for case in (*self.cases, *(self.since.cases if self.since else ()))}
        if words & set(FAILING_VERDICTS):
            return EXIT_FAILED
        if "incomparable" in words or not words:
            return EXIT_INCOMPARABLE
        if "inconclusive" in words:
            return {"pass": 0, "fail": EXIT_FAILED, "tell": EXIT_INCONCLUSIVE}[inconclusive]
        return 0

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON types, format number first."""
        plain = dataclasses.asdict(replace(self, since=None))
        del plain["since"], plain["stopped"]
        if self.since:
            plain["since"] = self.since.to_json()
        for case, data in zip(self.cases, plain["cases"], strict=True):
            data |= {"word": case.word, "said": case.said, "split": attribution_json(case.split)}
        return {"format": RESULT_FORMAT, "word": self.word, **plain, "state": self.state}
