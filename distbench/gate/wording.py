"""The sentences of measured findings."""

from __future__ import annotations

from distbench.analysis.paired import MOST, Look, Rule
from distbench.units import count_text


def sentence(name: str, seen: Look, rule: Rule, minutes_per_pair: float) -> str:
    """How much a cost has changed, how certain that is, and what to do if it is inconclusive."""
    words = ("slower", "faster") if name == "tokens_per_s" else ("less efficient", "more efficient")
    pairs, limit = count_text(seen.pairs, "pair"), f"{rule.effect * 100:g}%"
    if seen.word == "inconclusive":
        span = f"from {change(seen.low, words)} to {change(seen.high, words)} after {pairs}"
        return f"{span}: too wide for {limit}; {_more(seen, rule, minutes_per_pair)}"
    if seen.word == "pass" and seen.low <= 1 <= seen.high:
        return f"more than {percent(seen.high)} {words[0]} is excluded at 97.5% ({pairs}; limit {limit})"
    measured = f"{change(seen.ratio, words)} ({_range(seen)}; {pairs}"
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


def _range(seen: Look) -> str:
    low, high = (seen.low, seen.high) if seen.ratio >= 1 else (1 / seen.high, 1 / seen.low)
    return f"{percent(low)} to {percent(high)}"


def percent(ratio: float) -> str:
    """Excess of a ratio above 1: ``3.1%``."""
    value = (ratio - 1) * 100
    return f"{value:.1f}%" if value < 10_000 else f"{value:.0e}%"
