"""From pairs of records to findings: each gated number by the rule that fits it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from distbench.core.text import one_line
from distbench.core.units import count_text
from distbench.gate import sequential_test
from distbench.gate.counts import counted
from distbench.gate.pairs import Pairs, log_ratios, median
from distbench.gate.sequential_test import BYTES, TIMES, Estimator, Look, Rule, look
from distbench.gate.verdicts import Finding, Word
from distbench.gate.wording import before_and_after, percent, sentence
from distbench.suite.gate import PAIRED, GateRules, Tolerances

_COLUMNS = {"tokens_per_s": "step_s", "efficiency": "step_s", "peak_memory": "memory_peak"}
"""Gated number -> column of its cost."""
_UNCHANGED = 3
"""Pairs after which a peak memory that was the same to the byte in both arms of each needs no more. Any other
takes as many as a throughput: where an allocator alternates between two levels, all of the first five pairs
differ alike once in 512 cases."""


@dataclass(frozen=True)
class Measured:
    """Pairs of a case and, if it is part of a scaling series, those of the same case on one device."""

    pairs: Pairs
    base: Pairs = ()
    minutes_per_pair: float = 0.0

    def costs(self) -> dict[str, list[float]]:
        """Log ratios of the costs that are judged over pairs, candidate over baseline."""
        costs = {"tokens_per_s": log_ratios(self.pairs, "step_s")}
        if self.base:
            both = zip(costs["tokens_per_s"], log_ratios(self.base, "step_s"), strict=False)
            # E = X_n / (n X_1): for the same number of tokens per step, its reciprocal is n t_n / t_1
            costs["efficiency"] = [many - single for many, single in both]
        if any("memory_peak" in before.values for before, _ in self.pairs):
            costs["peak_memory"] = log_ratios(self.pairs, "memory_peak")
        return costs


def estimator_of(metric: str) -> Estimator:
    """How the mean of a gated number over pairs is made."""
    return BYTES if metric == "peak_memory" else TIMES


def rules(gate: GateRules, own: Tolerances) -> dict[str, Rule]:
    """Rule of each gated number that is judged over pairs."""
    limits = {name: getattr(own, name) for name in PAIRED}
    return {
        name: Rule(limit, gate.min_pairs, gate.max_pairs, estimator_of(name))
        for name, limit in limits.items()
        if limit is not None
    }


def has_ended(measured: Measured, by: dict[str, Rule]) -> bool:
    """Whether more pairs of a case can't change its verdict."""
    costs = measured.costs()
    return bool(measured.pairs) and all(
        not all(map(math.isfinite, values))
        # the one-device case has failed, so no more of its pairs will come
        or len(values) < len(measured.pairs)
        or sequential_test.has_ended(values, by[name])
        or (name == "peak_memory" and len(values) >= _UNCHANGED and not any(values))
        or (name == "efficiency" and _follows_pace(costs["tokens_per_s"], by))
        for name, values in costs.items()
        if name in by
    )


def _follows_pace(pace: Sequence[float], by: Mapping[str, Rule]) -> bool:
    """Whether the throughput on all devices decides alone, so that the efficiency needs no more pairs.

    If they lost nothing, no loss of efficiency counts; if they did, the case fails where that is gated.
    """
    if not all(map(math.isfinite, pace)) or not sequential_test.has_ended(pace, by["efficiency"]):
        return False
    return "tokens_per_s" in by or look(pace, by["efficiency"]).word in ("pass", "improved")


def pairs_expected(measured: Measured, by: dict[str, Rule]) -> int:
    """Total pairs a case should need, given the spread of those measured so far."""
    costs, expected = measured.costs(), 1
    for name, values in costs.items():
        if name in by and not (name == "efficiency" and "tokens_per_s" in by):
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
        pace = _measured("tokens_per_s", costs["tokens_per_s"], by["efficiency"], measured)
        by_name["efficiency"] = _given_pace(by_name["efficiency"], pace)
    return [*by_name.values(), *counted(measured.pairs, own)]


def _measured(name: str, values: Sequence[float], rule: Rule, measured: Measured) -> Finding:
    if not all(map(math.isfinite, values)):
        return _unusable(name, rule, [*measured.pairs, *(measured.base if name == "efficiency" else ())])
    if len(values) < 2:
        verb = "is" if len(values) == 1 else "are"
        why = f"{count_text(len(values), 'pair')} {verb} too few; {rule.least} are needed"
        return Finding(name, "inconclusive", why, rule.effect, pairs=len(values), needed=rule.least)
    if len(values) < len(measured.pairs):
        pairs = count_text(len(measured.pairs), "pair")
        why = f"only {len(values)} of {pairs} ran on one device; see that case"
        return Finding(name, "inconclusive", why, rule.effect, pairs=len(values))
    seen = look(values, rule)
    sides, unit = _medians(name, measured.pairs)
    return Finding(
        metric=name,
        word=seen.word,
        said=_values(name, seen, sides, unit) + sentence(name, seen, rule, measured.minutes_per_pair),
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


def _medians(name: str, pairs: Pairs) -> tuple[tuple[float | None, float | None], str]:
    """Medians of the baseline and the candidate, and their unit; an efficiency has none."""
    if name == "efficiency":
        return (None, None), ""
    column = "tokens_per_s" if name == "tokens_per_s" else _COLUMNS[name]
    unit = "tokens/s" if name == "tokens_per_s" else str(pairs[0][0].columns.get(column, {}).get("unit", ""))
    return (median(pairs, column, 0), median(pairs, column, 1)), unit


def _values(name: str, seen: Look, sides: tuple[float | None, float | None], unit: str) -> str:
    """Both values of a memory that has changed, for people think of it in bytes."""
    before, after = sides
    if name != "peak_memory" or seen.word == "pass" or before is None or after is None:
        return ""
    return f"{before_and_after(before, after, unit)}: "


def _unusable(name: str, rule: Rule, pairs: Pairs) -> Finding:
    """Finding on pairs of which one has no ratio of costs."""
    word: Word
    column = _COLUMNS[name]
    what = "step time" if column == "step_s" else "peak memory"
    for side, arm in ((1, "candidate"), (0, "baseline")):
        for record in (pair[side] for pair in pairs):
            value = record.values.get(column)
            if value is None:
                reason = one_line(record.absent.get(column, "no metric of the suite measures it"))
                word, why = "missing", f"no {what} ({reason})"
            elif 0 < value < math.inf:
                continue
            else:
                word, why = "invalid", f"a {what} of {value:g}{' s' if column == 'step_s' else ' B'}"
            # the candidate is not to blame for what is missing in the baseline
            return Finding(name, word if side else "incomparable", f"{why} in the {arm}", rule.effect)
    raise AssertionError("two positive costs have a ratio")


def _given_pace(efficiency: Finding, pace: Finding) -> Finding:
    """Finding *efficiency* in the light of *pace*, the throughput on all devices, by the same rule.

    The efficiency alone misleads. A model that computes faster on one device scales worse, although nobody
    lost anything; one that computes slower scales better. What is lost between devices is lost by all of them
    together, so a loss of efficiency counts only if the throughput on all devices shows a loss too.
    """
    if pace.ratio is None or efficiency.ratio is None or pace.word == "regressed":
        return efficiency
    if efficiency.word == "inconclusive" and pace.word != "inconclusive":
        lost = f"all devices together lose {percent(max(1, pace.high or 1))} at most (97.5% bound)"
        why = f"{lost}; alone it is uncertain: {efficiency.said}"
        return replace(efficiency, word="pass", said=why, needed=0)
    if efficiency.word != "regressed":
        return efficiency
    if pace.high is not None and pace.high < 1:
        why = f"diluted, not a regression: {efficiency.said}: one device gained more than all together"
        return replace(efficiency, word="pass", said=why, notable=True)
    if pace.word == "inconclusive":
        why = f"{efficiency.said}; whether all devices together lost anything is uncertain"
        return replace(efficiency, word="inconclusive", said=why, needed=pace.needed)
    why = f"not a regression: {efficiency.said}: one device became faster, all together did not"
    return replace(efficiency, word="pass", said=why, notable=True)
