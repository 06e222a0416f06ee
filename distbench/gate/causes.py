"""Where a loss of pace comes from, as far as the records of both arms tell."""

from __future__ import annotations

from collections.abc import Mapping

from distbench.gate.pairs import Pairs, median
from distbench.gate.verdicts import Finding
from distbench.units import bytes_text, duration_text, number_text

_PARTS = {
    "profile_exposed_comm_s": "exposed communication",
    "profile_forward_s": "the forward pass",
    "profile_backward_s": "the backward pass",
    "profile_optimizer_s": "the optimizer step",
    "profile_data_s": "loading data",
}
_LEAST_SHARE = 0.3
"""Of the longer step that a part has to make up to be named."""
_UNEVEN = 0.02
"""Rise of the imbalance, the slowest rank's work over the mean's, that is told."""


def cause(pace: Finding | None, base: Finding | None, pairs: Pairs) -> str:
    """Return where the pace of a case is lost; nothing if it is not.

    Args:
        pace: Its throughput.
        base: The throughput of the same on one device.
        pairs: Its trials.
    """
    if pace is None or pace.word != "regressed":
        return ""
    told = _one_device(base) + _traffic(pairs)
    if uneven := _imbalance(pairs):
        told.append(uneven)
    if parts := _parts(pairs):
        told.append(f"under the profiler a step is longer by {parts}")
    return "; ".join(told)


def _one_device(base: Finding | None) -> list[str]:
    if base is None or base.ratio is None:
        return []
    if base.word == "regressed":
        return [f"computation: one device alone is {(base.ratio - 1) * 100:.1f}% slower too"]
    if base.word in ("pass", "improved"):
        return ["communication or imbalance: one device alone is no slower"]
    return []


def _traffic(pairs: Pairs) -> list[str]:
    """Return how much more is communicated in a step, if it is more."""
    grown = []
    for column, text, noun in (("comm_calls", number_text, " collectives"), ("comm_bytes", bytes_text, "")):
        before, after = (median(pairs, column, side) for side in (0, 1))
        if before is not None and after is not None and after > before:
            grown.append(f"{text(after)}{noun}, was {text(before)}")
    return [f"communication: in a step {'; '.join(grown)}"] if grown else []


def _imbalance(pairs: Pairs) -> str:
    before, after = (median(pairs, "imbalance", side) for side in (0, 1))
    if before is None or after is None or not after - before >= _UNEVEN:
        return ""
    return f"imbalance: the busiest rank works {after:.2f} times the mean, was {before:.2f}"


def _parts(pairs: Pairs) -> str:
    grown = _growth(pairs)
    whole = sum(value for value in grown.values() if value > 0)
    named = sorted(
        ((name, value) for name, value in grown.items() if value > _LEAST_SHARE * whole > 0),
        key=lambda item: -item[1],
    )
    return ", ".join(f"{duration_text(value)} in {_PARTS[name]}" for name, value in named)


def _growth(pairs: Pairs) -> Mapping[str, float]:
    grown = {}
    for name in _PARTS:
        before, after = (median(pairs, name, side) for side in (0, 1))
        if before is not None and after is not None:
            grown[name] = after - before
    return grown
