"""State why no case is recommended, or why a faster one is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from distbench.analysis.case_summary import PENDING
from distbench.analysis.choice import MEASURE_IT, Candidate, Selection
from distbench.core.grouping import group_by
from distbench.core.text import join_limited
from distbench.core.units import format_bytes, format_count

_MAX_EXCLUDED = 3


def no_recommendation(every: Sequence[Candidate], selection: Selection) -> str:
    """Reason why *selection*, among the cases *every*, has no pick."""
    wish = selection.requirements
    devices = format_count(wish.devices or 0, "device")
    if not every:
        return "No recommendation: the run has no cases."
    if not any(one.devices == wish.devices for one in every):
        measured = join_limited([str(size) for size in sorted({one.devices for one in every})])
        return f"No recommendation for {devices}: the run has cases on {measured}."
    known = [one for one, why in selection.excluded if why == "does not fit" and one.memory]
    if known and wish.memory is not None:
        least = min(known, key=lambda one: one.memory or 0.0)
        return (
            f"No measured case fits in {format_bytes(wish.memory)}: the one with the lowest memory, "
            f"{least.name}, needs {format_bytes(least.memory or 0.0)}."
        )
    if noisy := [one for one in selection.provisional if one.is_noisy]:
        was = "was" if len(noisy) == 1 else "were"
        first = noisy[0]
        return (
            f"Not settled on {devices}: {len(noisy)} of {format_count(len(selection.provisional), 'case')} "
            f"{was} measured on a noisy machine; for example {first.name}: "
            f"{_without_kind(first.exclusion_reason)}."
        )
    untried = {_reason_kind(MEASURE_IT), PENDING}
    if selection.to_measure and {_reason_kind(why) for _, why in selection.excluded} <= untried:
        some = format_count(len(selection.to_measure), "case")
        return f"No recommendation for {devices}: none was measured yet; {some} may be fastest by prediction."
    return f"No recommendation for {devices}: {main_exclusion(selection)}."


def provisional_order(selection: Selection) -> list[str]:
    """Order of the cases as measured under noise, what noise doesn't change, and the remedy."""
    if not selection.provisional:
        return []
    order = [
        f"{one.name} {one.speed.interval_text(one.speed.ends)}" for one in selection.provisional if one.speed
    ]
    known = [one for one in selection.provisional if one.memory]
    least = min(known, key=lambda one: one.memory or 0.0, default=None)
    exact = (
        f"Noise does not change memory: {least.name} needs the least, {least.memory_text}." if least else ""
    )
    return [
        "Provisional order, best first, in tokens/s with 95% intervals; noise may have changed it: "
        f"{', '.join(order)}.",
        *filter(None, [exact]),
        "Stop the other processes and measure again with distbench run SUITE --repeat-noisy 3. If "
        "some cores stay free, raise the limit with --set metrics.telemetry.max_foreign_cpu=0.5.",
    ]


def main_exclusion(selection: Selection) -> str:
    """Most frequent kind of reason against a case, its number of cases, and the first of them."""
    reasons = [why for _, why in selection.excluded]
    wish = selection.requirements
    if not reasons:
        return " ".join(
            ["no case", *(["of", wish.work] if wish.work else []), "was measured", f"in {wish.precision}"]
        )
    # each differing case has its own numbers, so counts of whole sentences would not add up
    kind, count = _most_common_kind(reasons)
    alike = [why for why in reasons if _reason_kind(why) == kind]
    example = alike[0] if len(set(alike)) == 1 else f"{kind}; for example: {alike[0]}"
    return alike[0] if len(reasons) == 1 else f"{count} of {len(reasons)} cases: {example}"


def _most_common_kind(reasons: Sequence[str]) -> tuple[str, int]:
    """Most frequent kind of *reasons*, and its count."""
    return Counter(map(_reason_kind, reasons)).most_common(1)[0]


def _without_kind(reason: str) -> str:
    """*reason* without its first words (``_reason_kind``)."""
    return reason.partition(": ")[2] or reason


def _reason_kind(reason: str) -> str:
    """First words of a reason: a status, or the kind of job that judged."""
    return reason.partition(":")[0]


def excluded_but_faster(selection: Selection) -> list[str]:
    """Reasons against faster cases; without a pick, those that its headline does not give."""
    pick = selection.pick
    pace = pick.speed.value if pick and pick.speed else 0.0
    headline_kind = (
        "" if pick or not selection.excluded else _most_common_kind([why for _, why in selection.excluded])[0]
    )
    faster = [
        (one.speed.value, one)
        for one, why in selection.excluded
        if one.speed
        and one.speed.value > pace
        and one.exclusion_reason == why
        and _reason_kind(why) != headline_kind
    ]
    by_reason = group_by(sorted(faster, key=lambda pair: -pair[0]), lambda pair: pair[1].exclusion_reason)
    return [
        f"{join_limited([one.name for _, one in same])} {_verb(len(same), bool(pick))} not recommended: "
        f"{why}."
        for why, same in [*by_reason.items()][:_MAX_EXCLUDED]
    ]


def _verb(count: int, is_faster: bool) -> str:
    was, is_ = ("was", "is") if count == 1 else ("were", "are")
    return f"{was} faster, but {is_}" if is_faster else is_
