"""From pairs of records to findings: each number of a case by the rule that fits it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.paired import Look, Rule, look
from distbench.analysis.text import one_line
from distbench.gate.verdicts import Finding, Word
from distbench.record import Record
from distbench.spec.gate import Gate, Tolerances
from distbench.units import number_text, value_text

Pairs = Sequence[tuple[Record, Record]]
"""Trials of baseline and candidate, next to each other in time."""

COUNTED = {"peak_memory": "memory_peak", "comm_bytes": "comm_bytes", "comm_calls": "comm_calls"}
"""Gated number that does not differ from trial to trial -> its column."""


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
    count = len(measured.pairs)
    costs = {name: values for name, values in measured.costs().items() if name in by}
    if not costs:
        return count >= 1
    return all(
        not all(map(math.isfinite, values))
        or len(values) >= by[name].most
        or (by[name].is_look(len(values)) and look(values, by[name]).ended)
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
    by = rules(gate, own)
    told = [
        _measured(name, values, by[name], measured) for name, values in measured.costs().items() if name in by
    ]
    return [*_together(told), *_counted(measured.pairs, own)]


def _measured(name: str, values: Sequence[float], rule: Rule, measured: Measured) -> Finding:
    if len(values) < 2:
        return Finding(
            name, "inconclusive", f"{len(values)} pairs tell nothing; {rule.least} are needed", rule.effect
        )
    if not all(map(math.isfinite, values)):
        return _unusable(name, rule, measured.pairs)
    seen = look(values, rule)
    column, unit = ("tokens_per_s", "tokens/s") if name == "tokens_per_s" else ("", "")
    sides = [_median(measured.pairs, column, i) for i in (0, 1)] if column else [None, None]
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
    """Return what is wrong where a pair has no ratio of step times."""
    for side, word in ((1, "missing"), (0, "incomparable")):
        lacking = [pair[side] for pair in pairs if "step_s" not in pair[side].values]
        if lacking:
            which = "candidate" if side else "baseline"
            why = one_line(lacking[0].absent.get("step_s", "no metric of the suite tells it"))
            return Finding(
                name,
                "missing" if word == "missing" else "incomparable",
                f"no step time in the {which}: {why}",
                rule.effect,
            )
    return Finding(name, "invalid", "a step time that is no positive number", rule.effect)


def _sentence(name: str, seen: Look, rule: Rule, minutes_per_pair: float) -> str:
    worse, better = ("slower", "faster") if name == "tokens_per_s" else ("less efficient", "more efficient")
    range_ = f"{_percent(seen.low)} to {_percent(seen.high)}"
    limit = f"{rule.effect * 100:g}%"
    if seen.word == "pass":
        most = _percent(max(seen.high, 1.0))
        return f"more than {most} {worse} is excluded at 97.5% ({seen.pairs} pairs; limit {limit})"
    if seen.word == "regressed":
        return f"{_percent(seen.ratio)} {worse} ({range_}; {seen.pairs} pairs; limit {limit})"
    if seen.word == "improved":
        range_ = f"{_percent(1 / seen.high)} to {_percent(1 / seen.low)}"
        return f"{_percent(1 / seen.ratio)} {better} ({range_}; {seen.pairs} pairs)"
    more = seen.needed - seen.pairs
    minutes = f", some {max(1, round(more * minutes_per_pair))} more minutes" if minutes_per_pair else ""
    return (
        f"{range_} {worse} after {seen.pairs} pairs is too wide for {limit}; about {seen.needed} pairs would "
        f"tell{minutes}: raise gate.max_pairs, the tolerance, or measure.steps, or quiet the machine"
    )


def _together(told: list[Finding]) -> list[Finding]:
    """Return *told* with the efficiency held against the pace: alone it misleads.

    Where both arms' steps on one device change, the ratio moves the other way: a slower model scales
    better. The pace on all devices is gated by itself, so an efficiency that falls while the pace rises
    is diluted and no regression.
    """
    by_name = {one.metric: one for one in told}
    pace, efficiency = by_name.get("tokens_per_s"), by_name.get("efficiency")
    if not (pace and efficiency and efficiency.word == "regressed" and pace.word == "improved"):
        return told
    assert efficiency.ratio is not None
    said = (
        f"diluted, not a regression: {_percent(efficiency.ratio)} less efficient because one device became "
        "faster by more than all together did"
    )
    diluted = Finding(**{**vars(efficiency), "word": "pass", "said": said})
    return [diluted if one is efficiency else one for one in told]


def _counted(pairs: Pairs, own: Tolerances) -> list[Finding]:
    found = []
    for metric, column in COUNTED.items():
        limit = getattr(own, metric)
        before, after = _median(pairs, column, 0), _median(pairs, column, 1)
        if limit is None or before is None:
            # what the baseline does not tell either is gated by nothing that could be missing
            continue
        found.append(_one_counted(metric, column, limit, before, after, pairs))
    return found


def _one_counted(
    metric: str, column: str, limit: float, before: float, after: float | None, pairs: Pairs
) -> Finding:
    if after is None:
        why = pairs[0][1].absent.get(column, "no record tells it")
        said = f"measured in the baseline, absent in the candidate: {one_line(why)}"
        return Finding(metric, "missing", said, limit, baseline=before)
    unit = str(pairs[0][0].columns.get(column, {}).get("unit", ""))
    ratio = after / before if before else (1.0 if after == before else math.inf)
    texts = [value_text(value, unit) if unit else number_text(value) for value in (before, after)]
    if texts[0] == texts[1] and before != after:
        texts = [f"{value:,.0f} {unit}".rstrip() for value in (before, after)]
    told = "unchanged" if before == after else f"{texts[1]}, was {texts[0]}"
    word: Word = "pass"
    if ratio > 1 + limit:
        word = "regressed"
    elif ratio < 1 / (1 + limit):
        word = "improved"
    return Finding(
        metric,
        word,
        f"{told} (limit {limit * 100:g}%)" if word == "regressed" else told,
        limit,
        ratio if math.isfinite(ratio) else None,
        pairs=len(pairs),
        baseline=before,
        candidate=after,
        unit=unit,
    )


def _median(pairs: Pairs, column: str, side: int) -> float | None:
    values = [pair[side].values[column] for pair in pairs if column in pair[side].values]
    return statistics.median(values) if values else None


def _log_ratio(pair: tuple[Record, Record]) -> float:
    """Return the log ratio of the mean step times; NaN where one is absent or not positive."""
    before, after = (record.values.get("step_s", math.nan) for record in pair)
    return math.log(after / before) if before > 0 and after > 0 else math.nan


def _percent(ratio: float) -> str:
    """Return by how much a ratio is above 1: ``3.1%``."""
    return f"{(ratio - 1) * 100:.1f}%"
