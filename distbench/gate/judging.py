"""From pairs of records to findings: each gated number by the rule that fits it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from distbench.analysis import paired
from distbench.analysis.paired import MOST, Look, Rule, look
from distbench.analysis.text import one_line
from distbench.gate.verdicts import Finding, Word
from distbench.record import Record
from distbench.suite.gate import NOISY, GateRules, Tolerances
from distbench.units import count_text, number_text, value_text

Pairs = Sequence[tuple[Record, Record]]
"""Trials of baseline and candidate, next to each other in time."""

COUNTED = {"peak_memory": "memory_peak", "comm_bytes": "comm_bytes", "comm_calls": "comm_calls"}
"""Gated number that does not vary from trial to trial, so it is compared exactly -> its column."""


@dataclass(frozen=True)
class Measured:
    """Pairs of a case and, if it is part of a scaling series, those of the same case on one device."""

    pairs: Pairs
    base: Pairs = ()
    minutes_per_pair: float = 0.0

    def costs(self) -> dict[str, list[float]]:
        """Log ratios of the measured costs, candidate over baseline."""
        costs = {"tokens_per_s": [_log_ratio(pair) for pair in self.pairs]}
        if self.base:
            both = zip(self.pairs, self.base, strict=False)
            # E = X_n / (n X_1): for the same number of tokens per step, its reciprocal is n t_n / t_1
            costs["efficiency"] = [_log_ratio(many) - _log_ratio(single) for many, single in both]
        return costs


def median(pairs: Pairs, column: str, side: int) -> float | None:
    """Median of a column in the baseline (*side* 0) or the candidate (1).

    None if no record has it, NaN if it is NaN in one of them.
    """
    values = [pair[side].values[column] for pair in pairs if column in pair[side].values]
    if any(map(math.isnan, values)):
        # NaN can't be sorted
        return math.nan
    return statistics.median(values) if values else None


def rules(gate: GateRules, own: Tolerances) -> dict[str, Rule]:
    """Rule of each measured number that is gated."""
    limits = {name: getattr(own, name) for name in NOISY}
    return {
        name: Rule(limit, gate.min_pairs, gate.max_pairs)
        for name, limit in limits.items()
        if limit is not None
    }


def has_ended(measured: Measured, by: dict[str, Rule]) -> bool:
    """Whether more pairs of a case can't change its verdict."""
    costs = {name: values for name, values in measured.costs().items() if name in by}
    return bool(measured.pairs) and all(
        not all(map(math.isfinite, values))
        # the one-device case has failed, so no more of its pairs will come
        or len(values) < len(measured.pairs)
        or paired.has_ended(values, by[name])
        for name, values in costs.items()
    )


def pairs_expected(measured: Measured, by: dict[str, Rule]) -> int:
    """Total pairs a case should need, given the spread of those measured so far."""
    expected = 1
    for name, values in measured.costs().items():
        if name in by:
            usable = len(values) > 1 and all(map(math.isfinite, values))
            needed = look(values, by[name]).needed if usable else by[name].least
            expected = max(expected, min(max(needed, by[name].least), by[name].most))
    return expected


def findings(measured: Measured, gate: GateRules, own: Tolerances) -> list[Finding]:
    """Findings on each gated number of a case."""
    costs, by = measured.costs(), rules(gate, own)
    by_name = {name: _measured(name, costs[name], by[name], measured) for name in costs if name in by}
    if "efficiency" in by_name:
        # gated or not, the throughput decides what a lower efficiency means
        pace = by_name.get("tokens_per_s") or _measured(
            "tokens_per_s", costs["tokens_per_s"], by["efficiency"], measured
        )
        by_name["efficiency"] = _given_pace(by_name["efficiency"], pace)
    return [*by_name.values(), *counted(measured.pairs, own)]


def _measured(name: str, values: Sequence[float], rule: Rule, measured: Measured) -> Finding:
    if not all(map(math.isfinite, values)):
        return _unusable(name, rule, [*measured.pairs, *measured.base])
    if len(values) < 2:
        verb = "is" if len(values) == 1 else "are"
        why = f"{count_text(len(values), 'pair')} {verb} too few; {rule.least} are needed"
        return Finding(name, "inconclusive", why, rule.effect, pairs=len(values), needed=rule.least)
    if len(values) < len(measured.pairs):
        pairs = count_text(len(measured.pairs), "pair")
        why = f"only {len(values)} of {pairs} ran on one device; see that case"
        return Finding(name, "inconclusive", why, rule.effect, pairs=len(values))
    seen = look(values, rule)
    unit = "tokens/s" if name == "tokens_per_s" else ""
    sides = [median(measured.pairs, name, i) if unit else None for i in (0, 1)]
    return Finding(
        metric=name,
        word=seen.word,
        said=_sentence(name, seen, rule, measured.minutes_per_pair),
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
    """Finding on pairs of which one has no ratio of step times."""
    word: Word
    for side, arm in ((1, "candidate"), (0, "baseline")):
        for record in (pair[side] for pair in pairs):
            value = record.values.get("step_s")
            if value is None:
                reason = one_line(record.absent.get("step_s", "no metric of the suite measures it"))
                word, why = "missing", f"no step time ({reason})"
            elif 0 < value < math.inf:
                continue
            else:
                word, why = "invalid", f"a step time of {value:g} s"
            # the candidate is not to blame for what is missing in the baseline
            return Finding(name, word if side else "incomparable", f"{why} in the {arm}", rule.effect)
    raise AssertionError("two positive times have a ratio")


def _given_pace(efficiency: Finding, pace: Finding) -> Finding:
    """Finding *efficiency* in the light of the throughput on all devices: alone it misleads.

    A model that computes faster scales worse: its efficiency falls while its throughput rises, which is
    a dilution and not a regression. Conversely, a slower model scales better: its throughput is gated too.
    """
    if efficiency.word != "regressed" or pace.high is None:
        return efficiency
    if pace.high < 1:
        why = f"diluted, not a regression: {efficiency.said}: one device gained more than all together"
        return replace(efficiency, word="pass", said=why, notable=True)
    if pace.word == "pass":
        return replace(efficiency, said=f"{efficiency.said}: one device became faster, all together did not")
    return efficiency


def _log_ratio(pair: tuple[Record, Record]) -> float:
    """Log ratio of the mean step times; NaN where one is absent or not a positive number."""
    before, after = (record.values.get("step_s", math.nan) for record in pair)
    # not the logarithm of the quotient, which may be too large or too small for a float
    return math.log(after) - math.log(before) if before > 0 and after > 0 else math.nan


def counted(pairs: Pairs, own: Tolerances) -> list[Finding]:
    """Findings on each gated number that is counted."""
    found = []
    for metric, column in COUNTED.items():
        limit = getattr(own, metric)
        before, after = median(pairs, column, 0), median(pairs, column, 1)
        if limit is None or before is None:
            # not gated, or the baseline doesn't report it either
            continue
        found.append(_counted(metric, column, limit, before, after, pairs))
    return found


def _counted(
    metric: str, column: str, limit: float, before: float, after: float | None, pairs: Pairs
) -> Finding:
    if after is None:
        reason = one_line(pairs[0][1].absent.get(column, "not in its records"))
        why = f"measured in the baseline, absent in the candidate: {reason}"
        return Finding(metric, "missing", why, limit, baseline=before if _is_count(before) else None)
    if not _is_count(after):
        return Finding(metric, "invalid", f"{after:g} in the candidate, which is not a count", limit)
    if not _is_count(before):
        return Finding(metric, "incomparable", f"{before:g} in the baseline, which is not a count", limit)
    unit = str(pairs[0][0].columns.get(column, {}).get("unit", ""))
    ratio = after / before if before else (1.0 if after == before else math.inf)
    word: Word = "regressed" if ratio > 1 + limit else "improved" if ratio < 1 / (1 + limit) else "pass"
    values = "unchanged" if before == after else _before_and_after(before, after, unit)
    return Finding(
        metric,
        word,
        f"{values} (limit {limit * 100:g}%)" if word == "regressed" else values,
        limit,
        ratio if math.isfinite(ratio) else None,
        pairs=len(pairs),
        baseline=before,
        candidate=after,
        unit=unit,
    )


def _is_count(value: float) -> bool:
    return 0 <= value < math.inf


def _before_and_after(before: float, after: float, unit: str) -> str:
    """Both values, with enough digits to see that they differ."""
    texts = [value_text(value, unit) if unit else number_text(value) for value in (after, before)]
    if texts[0] == texts[1]:
        texts = [f"{value:,.15g} {unit}".rstrip() for value in (after, before)]
    return one_line(f"{texts[0]}, was {texts[1]}")


def _sentence(name: str, seen: Look, rule: Rule, minutes_per_pair: float) -> str:
    """How much a cost has changed, how certain that is, and what to do if it is inconclusive."""
    words = ("slower", "faster") if name == "tokens_per_s" else ("less efficient", "more efficient")
    pairs, limit = count_text(seen.pairs, "pair"), f"{rule.effect * 100:g}%"
    if seen.word == "inconclusive":
        span = f"from {change(seen.low, words)} to {change(seen.high, words)} after {pairs}"
        return f"{span}: too wide for {limit}; {_more(seen, rule, minutes_per_pair)}"
    if seen.word == "pass" and seen.low <= 1 <= seen.high:
        return f"more than {percent(seen.high)} {words[0]} is excluded at 97.5% ({pairs}; limit {limit})"
    low, high = (seen.low, seen.high) if seen.ratio >= 1 else (1 / seen.high, 1 / seen.low)
    measured = f"{change(seen.ratio, words)} ({percent(low)} to {percent(high)}; {pairs}"
    if seen.word == "pass":
        return f"{measured}), within the limit of {limit}"
    return f"{measured}; limit {limit})"


def _more(seen: Look, rule: Rule, minutes_per_pair: float) -> str:
    """Pairs needed for a verdict, and how to get it."""
    minutes = max(1, round((seen.needed - seen.pairs) * minutes_per_pair))
    time = f" (about {count_text(minutes, 'more minute')})" if minutes_per_pair else ""
    if seen.needed <= rule.most:
        return f"{seen.needed} pairs would suffice{time}: raise gate.minutes"
    count = f"about {seen.needed:,}" if seen.needed < MOST else f"{MOST:,} or more"
    return (
        f"{count} pairs would be needed{time}: raise gate.max_pairs, the tolerance or measure.steps, or use "
        "a quieter machine"
    )


def change(ratio: float, words: tuple[str, str]) -> str:
    """A ratio of costs in words: ``3.1% slower``, ``2.0% faster``."""
    return f"{percent(ratio)} {words[0]}" if ratio >= 1 else f"{percent(1 / ratio)} {words[1]}"


def percent(ratio: float) -> str:
    """Excess of a ratio above 1: ``3.1%``."""
    value = (ratio - 1) * 100
    return f"{value:.1f}%" if value < 10_000 else f"{value:.0e}%"
