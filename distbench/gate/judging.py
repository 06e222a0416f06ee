"""From pairs of records to findings: each number of a case by the rule that fits it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from distbench.analysis import paired
from distbench.analysis.paired import Rule, look
from distbench.analysis.text import one_line
from distbench.gate.counted import counted
from distbench.gate.pairs import Pairs, median
from distbench.gate.verdicts import Finding, Word
from distbench.gate.wording import pairs_text, sentence
from distbench.record import Record
from distbench.spec.gate import Gate, Tolerances


@dataclass(frozen=True)
class Measured:
    """The pairs of a case and, if it is part of a scaling series, those of the same on one device."""

    pairs: Pairs
    base: Pairs = ()
    minutes_per_pair: float = 0.0

    def costs(self) -> dict[str, list[float]]:
        """Return the log ratios of what is measured, candidate over baseline."""
        found = {"tokens_per_s": [_log_ratio(pair) for pair in self.pairs]}
        if self.base:
            both = zip(self.pairs, self.base, strict=False)
            # E = X_n / (n X_1): with as many tokens a step, its reciprocal is n t_n / t_1
            found["efficiency"] = [_log_ratio(many) - _log_ratio(one) for many, one in both]
        return found


def rules(gate: Gate, own: Tolerances) -> dict[str, Rule]:
    """Return the rule of each number that is measured."""
    limits = {"tokens_per_s": own.tokens_per_s, "efficiency": own.efficiency}
    return {
        name: Rule(limit, gate.min_pairs, gate.max_pairs)
        for name, limit in limits.items()
        if limit is not None
    }


def has_ended(measured: Measured, by: dict[str, Rule]) -> bool:
    """Return whether more pairs of a case would tell nothing that a verdict needs."""
    costs = {name: values for name, values in measured.costs().items() if name in by}
    return bool(measured.pairs) and all(
        not all(map(math.isfinite, values))
        # on one device it has failed, and no more will come
        or len(values) < len(measured.pairs)
        or paired.has_ended(values, by[name])
        for name, values in costs.items()
    )


def pairs_expected(measured: Measured, by: dict[str, Rule]) -> int:
    """Return the pairs that a case should take in all, by the spread of those that it has."""
    expected = 1
    for name, values in measured.costs().items():
        if name in by:
            usable = len(values) > 1 and all(map(math.isfinite, values))
            needed = look(values, by[name]).needed if usable else by[name].least
            expected = max(expected, min(max(needed, by[name].least), by[name].most))
    return expected


def findings(measured: Measured, gate: Gate, own: Tolerances) -> list[Finding]:
    """Return what the pairs of a case say of each number that is gated."""
    costs, by = measured.costs(), rules(gate, own)
    told = {name: _measured(name, costs[name], by[name], measured) for name in costs if name in by}
    if "efficiency" in told:
        # gated or not, the pace tells what a lower efficiency means
        pace = told.get("tokens_per_s") or _measured(
            "tokens_per_s", costs["tokens_per_s"], by["efficiency"], measured
        )
        told["efficiency"] = _beside_pace(told["efficiency"], pace)
    return [*told.values(), *counted(measured.pairs, own)]


def _measured(name: str, values: Sequence[float], rule: Rule, measured: Measured) -> Finding:
    if not all(map(math.isfinite, values)):
        return _unusable(name, rule, [*measured.pairs, *measured.base])
    if len(values) < 2:
        said = f"{pairs_text(len(values))} tell{'s' * (len(values) == 1)} nothing; {rule.least} are needed"
        return Finding(name, "inconclusive", said, rule.effect, pairs=len(values), needed=rule.least)
    if len(values) < len(measured.pairs):
        said = (
            f"only {len(values)} of {pairs_text(len(measured.pairs))} were made on one device; see that case"
        )
        return Finding(name, "inconclusive", said, rule.effect, pairs=len(values))
    seen = look(values, rule)
    column, unit = ("tokens_per_s", "tokens/s") if name == "tokens_per_s" else ("", "")
    sides = [median(measured.pairs, column, i) for i in (0, 1)] if column else [None, None]
    return Finding(
        metric=name,
        word=seen.word,
        said=sentence(name, seen, rule, measured.minutes_per_pair),
        limit=rule.effect,
        ratio=seen.ratio,
        low=seen.low,
        high=seen.high,
        pairs=seen.pairs,
        baseline=sides[0],
        candidate=sides[1],
        unit=unit,
        needed=seen.needed if seen.word == "inconclusive" else 0,
        deviation=seen.deviation,
    )


def _unusable(name: str, rule: Rule, pairs: Pairs) -> Finding:
    """Return what is wrong where a pair has no ratio of step times."""
    for side, arm in ((1, "candidate"), (0, "baseline")):
        for record in (pair[side] for pair in pairs):
            if problem := _no_time(record):
                word, said = problem
                # what the baseline lacks is no fault of the candidate's
                return Finding(name, word if side else "incomparable", f"{said} in the {arm}", rule.effect)
    raise AssertionError("two positive times have a ratio")


def _no_time(record: Record) -> tuple[Word, str] | None:
    """Return what is wrong with the step time of *record*, or None."""
    if "step_s" not in record.values:
        why = one_line(record.absent.get("step_s", "no metric of the suite tells it"))
        return "missing", f"no step time ({why})"
    value = record.values["step_s"]
    return None if 0 < value < math.inf else ("invalid", f"a step time of {value:g} s")


def _beside_pace(efficiency: Finding, pace: Finding) -> Finding:
    """Return *efficiency* held against the pace of all devices together: alone it misleads.

    A model that computes faster scales worse: its efficiency falls while its pace rises, which is
    diluted and no regression. The other way round, a slower model scales better: its pace is gated too.
    """
    if efficiency.word != "regressed" or pace.high is None:
        return efficiency
    if pace.high < 1:
        said = f"diluted, not a regression: {efficiency.said}: one device gained more than all together did"
        return replace(efficiency, word="pass", said=said, notable=True)
    if pace.word == "pass":
        return replace(efficiency, said=f"{efficiency.said}: one device became faster, all together did not")
    return efficiency


def _log_ratio(pair: tuple[Record, Record]) -> float:
    """Return the log ratio of the mean step times; NaN where one is absent or no positive number."""
    before, after = (record.values.get("step_s", math.nan) for record in pair)
    # not the logarithm of the quotient, which may be too large or too small for a float
    return math.log(after) - math.log(before) if before > 0 and after > 0 else math.nan
