"""Word findings: change, interval and pairs needed."""

from __future__ import annotations

from distbench.core.text import one_line
from distbench.core.units import format_count, format_number, format_value
from distbench.gate.sequential_test import MAX_PAIRS_NEEDED, InterimLook, PairRule

COST_WORDS = {
    # not slower: 50% more time per step means 33% fewer tokens/s, which pick and compare call 33% slower
    "tokens_per_s": ("more time per step", "less time per step"),
    "efficiency": ("less efficient", "more efficient"),
    "peak_memory": ("more memory", "less memory"),
    "startup": ("more time to start", "less time to start"),
}
"""Number that is judged over pairs -> words for a higher and a lower cost."""


def paired_sentence(name: str, look: InterimLook, rule: PairRule, minutes_per_pair: float) -> str:
    """Change of a cost, its certainty, and advice if it is inconclusive.

    A pass includes the loss that may still be hidden.
    """
    words = COST_WORDS[name]
    pairs, limit = format_count(look.pairs, "pair"), f"{rule.effect * 100:g}%"
    if look.word == "inconclusive":
        span = f"from {describe_change(look.low, words)} to {describe_change(look.high, words)} after {pairs}"
        return f"{span}: too wide for {limit}; {_pairs_needed_text(look, rule, minutes_per_pair)}"
    if look.word == "pass" and look.low == look.high == 1:
        return "unchanged"
    if look.word == "pass" and look.low <= 1 <= look.high:
        hidden = describe_change(look.high, words)
        return (
            f"no significant change; up to {hidden} can't be excluded (97.5% bound; {pairs}; limit {limit})"
        )
    ends = sorted((look.low, look.high), key=lambda end: abs(end - 1))
    # so that values beyond the limit and within it never print alike
    digits = 1 if abs(abs(look.ratio - 1) - rule.effect) >= 0.001 else 2
    among = " to ".join(percent_change(end, digits) for end in ends)
    measured = f"{describe_change(look.ratio, words, digits)} ({among}; {pairs}"
    if look.word == "pass":
        return f"{measured}), within the limit of {limit}"
    return f"{measured}; limit {limit})"


def _pairs_needed_text(look: InterimLook, rule: PairRule, minutes_per_pair: float) -> str:
    """Pairs needed for a verdict, and advice on how to get it."""
    minutes = max(1, round((look.pairs_needed - look.pairs) * minutes_per_pair))
    time = f" (about {format_count(minutes, 'more minute')})" if minutes_per_pair else ""
    if look.pairs_needed <= rule.max_pairs:
        return f"{look.pairs_needed} pairs would suffice{time}: raise gate.minutes"
    count = (
        f"about {look.pairs_needed:,}"
        if look.pairs_needed < MAX_PAIRS_NEEDED
        else f"{MAX_PAIRS_NEEDED:,} or more"
    )
    return (
        f"{count} pairs would be needed{time}: raise gate.max_pairs, the tolerance or measure.steps, or use "
        "a quieter machine"
    )


def describe_change(ratio: float, words: tuple[str, str], digits: int = 1) -> str:
    """A ratio of costs in words: ``3.1% more memory``, ``2.0% less memory`` for 0.98x as much."""
    return f"{percent_change(ratio, digits)} {words[ratio < 1]}"


def percent_change(ratio: float, digits: int = 1) -> str:
    """Distance of a ratio from 1, as tables show it: ``3.1%``."""
    value = abs(ratio - 1) * 100
    return f"{value:.{digits}f}%" if value < 10_000 else f"{value:.0e}%"


def before_after_text(before: float, after: float, unit: str) -> str:
    """Both values, with enough digits to see that they differ."""
    texts = [format_value(value, unit) if unit else format_number(value) for value in (after, before)]
    if texts[0] == texts[1]:
        texts = [f"{value:,.15g} {unit}".rstrip() for value in (after, before)]
    return one_line(f"{texts[0]}, was {texts[1]}")
