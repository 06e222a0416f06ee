"""What a second series makes of the first: a false alarm is not raised twice by processes of their own."""

from __future__ import annotations

from dataclasses import replace

from distbench.gate.verdicts import Finding


def is_flagged(one: Finding) -> bool:
    """Return whether a finding has to be confirmed: it is measured, and beyond its tolerance."""
    return one.word == "regressed" and one.low is not None


def unconfirmed(one: Finding) -> Finding:
    """Return a finding that a fresh series would have confirmed, had there been the time."""
    if not is_flagged(one):
        return one
    said = f"flagged ({one.said}), and stopped before a fresh series could confirm it"
    return replace(one, word="inconclusive", said=said)


def confirmed(first: list[Finding], second: list[Finding]) -> list[Finding]:
    """Return the findings of two series: what the first flagged stands only if the second says so too."""
    again = {one.metric: one for one in second}
    found = []
    for one in first:
        other = again.get(one.metric)
        if other is None or not is_flagged(one):
            found.append(one)
        elif other.word == "regressed":
            # with the numbers of the second: the first was taken for being large, so it says too much
            found.append(replace(other, said=f"confirmed by a fresh series: {other.said}; first: {one.said}"))
        else:
            said = f"flagged once ({one.said}) and not confirmed by a fresh series: {other.said}"
            found.append(replace(other, said=said, notable=True))
    # a trial that failed in the second series is no less broken
    return found + [one for one in second if one.metric == "trial"]
