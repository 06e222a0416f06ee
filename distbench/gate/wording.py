"""What a series has told, in a sentence."""

from __future__ import annotations

from distbench.analysis.paired import MOST, Look, Rule


def sentence(name: str, seen: Look, rule: Rule, minutes_per_pair: float) -> str:
    """Return how much a cost has changed, how sure that is, and what to do where it is not."""
    words = ("slower", "faster") if name == "tokens_per_s" else ("less efficient", "more efficient")
    pairs, limit = pairs_text(seen.pairs), f"{rule.effect * 100:g}%"
    if seen.word == "inconclusive":
        span = f"from {change(seen.low, words)} to {change(seen.high, words)} after {pairs}"
        return f"{span}: too wide for {limit}; {_more(seen, rule, minutes_per_pair)}"
    if seen.word == "pass" and seen.low <= 1 <= seen.high:
        return f"more than {percent(seen.high)} {words[0]} is excluded at 97.5% ({pairs}; limit {limit})"
    told = f"{change(seen.ratio, words)} ({_range(seen)}; {pairs}"
    if seen.word == "pass":
        return f"{told}), less than the {limit} that counts"
    return f"{told}; limit {limit})"


def _more(seen: Look, rule: Rule, minutes_per_pair: float) -> str:
    """Return what it takes to tell, and what to do for it."""
    minutes = max(1, round((seen.needed - seen.pairs) * minutes_per_pair))
    time = f", some {minutes:,} more minutes" if minutes_per_pair else ""
    if seen.needed <= rule.most:
        return f"{seen.needed} pairs would tell{time}: raise gate.minutes"
    count = f"{seen.needed:,} pairs" if seen.needed < MOST else f"{MOST:,} pairs or more"
    return (
        f"about {count} would tell{time}: raise gate.max_pairs, the tolerance, or measure.steps, or quiet "
        "the machine"
    )


def change(ratio: float, words: tuple[str, str]) -> str:
    """Return what a ratio of costs means: ``3.1% slower``, ``2.0% faster``."""
    return f"{percent(ratio)} {words[0]}" if ratio >= 1 else f"{percent(1 / ratio)} {words[1]}"


def _range(seen: Look) -> str:
    low, high = (seen.low, seen.high) if seen.ratio >= 1 else (1 / seen.high, 1 / seen.low)
    return f"{percent(low)} to {percent(high)}"


def pairs_text(count: int) -> str:
    """Return ``5 pairs``."""
    return f"{count} pair{'s' * (count != 1)}"


def percent(ratio: float) -> str:
    """Return by how much a ratio is above 1: ``3.1%``."""
    value = (ratio - 1) * 100
    return f"{value:.1f}%" if value < 10_000 else f"{value:.0e}%"
