"""Judge each gated metric by its rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from distbench.core.text import one_line
from distbench.core.units import format_count
from distbench.gate import sequential_test
from distbench.gate.pairs import CasePairs, RecordPairs, median_of_arm
from distbench.gate.sequential_test import (
    BYTE_ESTIMATOR,
    TIME_ESTIMATOR,
    Estimator,
    InterimLook,
    PairRule,
    take_look,
)
from distbench.gate.verdicts import GateVerdict, MetricFinding
from distbench.gate.wording import before_after_text, paired_sentence, percent_change
from distbench.suite.gate import PAIRED_METRICS, GateRules, Tolerances

_COST_COLUMNS = {
    "tokens_per_s": "step_s",
    "efficiency": "step_s",
    "peak_memory": "memory_peak",
    "startup": "startup_s",
}
"""Gated number -> column of its cost."""
_COST_NAMES = {"step_s": "step time", "memory_peak": "peak memory", "startup_s": "start-up time"}
_MIN_IDENTICAL_PAIRS = 3
"""Pairs after which a peak memory that was the same to the byte in both arms of each needs no more. Any
other takes as many as a throughput: where an allocator alternates between two levels, all of the first
five pairs differ alike once in 512 cases.
"""
_COUNTED_METRICS = ("comm_bytes", "comm_calls")
"""Gated numbers that do not vary from trial to trial; each has the name of its column."""


def estimator_of(metric: str) -> Estimator:
    """Estimator of the mean of a gated number over pairs."""
    return BYTE_ESTIMATOR if metric == "peak_memory" else TIME_ESTIMATOR


def paired_rules(gate: GateRules, own: Tolerances) -> dict[str, PairRule]:
    """Rule of each gated number that is judged over pairs."""
    limits = {name: getattr(own, name) for name in PAIRED_METRICS}
    return {
        name: PairRule(limit, gate.min_pairs, gate.max_pairs, estimator_of(name))
        for name, limit in limits.items()
        if limit is not None
    }


def is_decided(case_pairs: CasePairs, rules_by_metric: dict[str, PairRule]) -> bool:
    """True if more pairs of a case can't change its verdict."""
    costs = case_pairs.log_cost_ratios()
    return bool(case_pairs.pairs) and all(
        not all(map(math.isfinite, values))
        # the one-device case has failed, so no more of its pairs will come
        or len(values) < len(case_pairs.pairs)
        or sequential_test.is_series_over(values, rules_by_metric[name])
        or (name == "peak_memory" and len(values) >= _MIN_IDENTICAL_PAIRS and not any(values))
        or (name == "efficiency" and _throughput_decides(costs["tokens_per_s"], rules_by_metric))
        for name, values in costs.items()
        if name in rules_by_metric
    )


def _throughput_decides(pace: Sequence[float], rules_by_metric: Mapping[str, PairRule]) -> bool:
    """True if the throughput on all devices decides alone, so that the efficiency needs no more pairs.

    If they lost nothing, no loss of efficiency counts; if they did, the case fails where that is gated.
    """
    if not all(map(math.isfinite, pace)) or not sequential_test.is_series_over(
        pace, rules_by_metric["efficiency"]
    ):
        return False
    return "tokens_per_s" in rules_by_metric or take_look(pace, rules_by_metric["efficiency"]).word in (
        "pass",
        "improved",
    )


def expected_pairs(case_pairs: CasePairs, rules_by_metric: dict[str, PairRule]) -> int:
    """Total pairs a case should need, given the spread of those measured so far."""
    costs, expected = case_pairs.log_cost_ratios(), 1
    for name, values in costs.items():
        if name in rules_by_metric and not (name == "efficiency" and "tokens_per_s" in rules_by_metric):
            usable = len(values) > 1 and all(map(math.isfinite, values))
            needed = (
                take_look(values, rules_by_metric[name]).pairs_needed
                if usable
                else rules_by_metric[name].min_pairs
            )
            expected = max(
                expected, min(max(needed, rules_by_metric[name].min_pairs), rules_by_metric[name].max_pairs)
            )
    return expected


def metric_findings(case_pairs: CasePairs, gate: GateRules, own: Tolerances) -> list[MetricFinding]:
    """Findings on each gated number of a case."""
    costs, by = case_pairs.log_cost_ratios(), paired_rules(gate, own)
    by_name = {name: _paired_finding(name, costs[name], by[name], case_pairs) for name in costs if name in by}
    if "efficiency" in by_name:
        # gated or not, the throughput decides what a lower efficiency means
        pace = _paired_finding("tokens_per_s", costs["tokens_per_s"], by["efficiency"], case_pairs)
        by_name["efficiency"] = _adjust_for_throughput(by_name["efficiency"], pace)
    return [*by_name.values(), *counted_findings(case_pairs.pairs, own)]


def _paired_finding(
    name: str, values: Sequence[float], rule: PairRule, case_pairs: CasePairs
) -> MetricFinding:
    if not all(map(math.isfinite, values)):
        return _unusable_finding(
            name, rule, [*case_pairs.pairs, *(case_pairs.single_device_pairs if name == "efficiency" else ())]
        )
    if len(values) < 2:
        verb = "is" if len(values) == 1 else "are"
        why = f"{format_count(len(values), 'pair')} {verb} too few; {rule.min_pairs} are needed"
        return MetricFinding(name, "inconclusive", why, rule.effect, pairs=len(values), needed=rule.min_pairs)
    if len(values) < len(case_pairs.pairs):
        pairs = format_count(len(case_pairs.pairs), "pair")
        why = f"only {len(values)} of {pairs} ran on one device; see that case"
        return MetricFinding(name, "inconclusive", why, rule.effect, pairs=len(values))
    look = take_look(values, rule)
    sides, unit = _medians(name, case_pairs.pairs)
    return MetricFinding(
        metric=name,
        word=look.word,
        said=_before_after_text(name, look, sides, unit)
        + paired_sentence(name, look, rule, case_pairs.minutes_per_pair),
        limit=rule.effect,
        ratio=look.ratio,
        low=look.low,
        high=look.high,
        pairs=look.pairs,
        baseline=sides[0],
        candidate=sides[1],
        unit=unit,
        needed=look.pairs_needed if look.word == "inconclusive" else 0,
        deviation=look.deviation,
    )


def _medians(name: str, pairs: RecordPairs) -> tuple[tuple[float | None, float | None], str]:
    """Medians of the baseline and the candidate, and their unit; an efficiency has none."""
    if name == "efficiency":
        return (None, None), ""
    column = "tokens_per_s" if name == "tokens_per_s" else _COST_COLUMNS[name]
    unit = "tokens/s" if name == "tokens_per_s" else str(pairs[0][0].columns.get(column, {}).get("unit", ""))
    return (median_of_arm(pairs, column, 0), median_of_arm(pairs, column, 1)), unit


def _before_after_text(
    name: str, look: InterimLook, sides: tuple[float | None, float | None], unit: str
) -> str:
    """Format baseline and candidate of a changed memory or start: people think in bytes and seconds."""
    before, after = sides
    if name not in ("peak_memory", "startup") or look.word == "pass" or before is None or after is None:
        return ""
    return f"{before_after_text(before, after, unit)}: "


def _unusable_finding(name: str, rule: PairRule, pairs: RecordPairs) -> MetricFinding:
    """Finding on pairs of which one has no ratio of costs."""
    word: GateVerdict
    column = _COST_COLUMNS[name]
    what = _COST_NAMES[column]
    for side, arm in ((1, "candidate"), (0, "baseline")):
        for record in (pair[side] for pair in pairs):
            value = record.values.get(column)
            if value is None:
                reason = one_line(record.absent.get(column, "no metric of the suite measures it"))
                word, why = "missing", f"no {what} ({reason})"
            elif 0 < value < math.inf:
                continue
            else:
                word, why = "invalid", f"a {what} of {value:g} {'B' if column == 'memory_peak' else 's'}"
            # the candidate is not to blame for what is missing in the baseline
            return MetricFinding(name, word if side else "incomparable", f"{why} in the {arm}", rule.effect)
    raise AssertionError("two positive costs have a ratio")


def _adjust_for_throughput(efficiency: MetricFinding, pace: MetricFinding) -> MetricFinding:
    """Adjust the finding *efficiency* by *pace*, the throughput on all devices, by the same rule.

    The efficiency alone misleads. A model that computes faster on one device scales worse, although nothing
    was lost; one that computes slower scales better. Time lost between devices is lost by all of them
    together, so a loss of efficiency counts only if the throughput on all devices shows a loss too.
    """
    if pace.ratio is None or efficiency.ratio is None or pace.word == "regressed":
        return efficiency
    if efficiency.word == "inconclusive" and pace.word != "inconclusive":
        lost = f"all devices together lose {percent_change(max(1, pace.high or 1))} at most (97.5% bound)"
        why = f"{lost}; efficiency alone is uncertain: {efficiency.said}"
        return replace(efficiency, word="pass", said=why, needed=0)
    if efficiency.word != "regressed":
        return efficiency
    if pace.high is not None and pace.high < 1:
        why = (
            f"diluted, not a regression: {efficiency.said}: one device gained more than all devices together"
        )
        return replace(efficiency, word="pass", said=why, notable=True)
    if pace.word == "inconclusive":
        why = f"{efficiency.said}; whether all devices together lost anything is uncertain"
        return replace(efficiency, word="inconclusive", said=why, needed=pace.needed)
    why = f"not a regression: {efficiency.said}: one device became faster, all devices together did not"
    return replace(efficiency, word="pass", said=why, notable=True)


def counted_findings(pairs: RecordPairs, own: Tolerances) -> list[MetricFinding]:
    """Findings on each gated number that is counted."""
    found = []
    for metric in _COUNTED_METRICS:
        limit = getattr(own, metric)
        before, after = median_of_arm(pairs, metric, 0), median_of_arm(pairs, metric, 1)
        if limit is None or before is None:
            # not gated, or the baseline doesn't report it either
            continue
        found.append(_counted_finding(metric, limit, before, after, pairs))
    return found


def _counted_finding(
    metric: str, limit: float, before: float, after: float | None, pairs: RecordPairs
) -> MetricFinding:
    if after is None:
        reason = one_line(pairs[0][1].absent.get(metric, "not in its records"))
        why = f"measured in the baseline, absent in the candidate: {reason}"
        return MetricFinding(metric, "missing", why, limit, baseline=before if _is_count(before) else None)
    if not _is_count(after):
        return MetricFinding(metric, "invalid", f"{after:g} in the candidate, which is not a count", limit)
    if not _is_count(before):
        return MetricFinding(
            metric, "incomparable", f"{before:g} in the baseline, which is not a count", limit
        )
    unit = str(pairs[0][0].columns.get(metric, {}).get("unit", ""))
    ratio = after / before if before else (1.0 if after == before else math.inf)
    word: GateVerdict = (
        "regressed" if ratio > 1 + limit else "improved" if ratio < 1 / (1 + limit) else "pass"
    )
    values = "unchanged" if before == after else before_after_text(before, after, unit)
    return MetricFinding(
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
