"""A recommendation in sentences: what to use, what it beats and by how much, and what would change it."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from distbench.analysis.choice import Candidate, Choice, Goal, Wish, choose, turns
from distbench.analysis.job_results import job_results
from distbench.analysis.price import cost_of, sentence
from distbench.analysis.run import AnalysedRun
from distbench.analysis.statistics.intervals import Interval
from distbench.core.grouping import grouped
from distbench.core.text import listed, one_line
from distbench.core.units import bytes_text, count_text, percent_text, ratio_texts

_MOST_TURNS = 3
# an alternative that saves less is not worth a sentence
_WORTH_SAVING = 0.05
# a slowdown by estimate that is less is not worth a number
_WORTH_A_NUMBER = 0.03
_MOST_BARRED = 3


@dataclass(frozen=True)
class Answer:
    """A recommendation, with its reasons."""

    headline: str
    """One sentence: what to use, with its numbers."""
    reasons: tuple[str, ...]
    """Sentences: what it beats or is tied with, what would change it, what is unknown."""


def answer(run: AnalysedRun, wish: Wish | None = None) -> Answer:
    """Recommendation for *wish*; without one, for no special requirements."""
    choice = choose(run.candidates, wish or Wish())
    pick = choice.pick
    if pick is None:
        return Answer(_nothing(run.candidates, choice), (*_provisional(choice), *_barred(choice)))
    held = run.held_back.get(pick.id)
    by, why = (f", held back by {held.by}", [f"{pick.name} is {held.sentence}."]) if held else ("", [])
    return Answer(
        f"Train with {pick.name} on {count_text(pick.devices, 'device')}{_tie(choice, pick)}{by}: "
        f"{_numbers(choice, pick)}.{_better(choice, pick)}",
        (
            *why,
            *_lead(run.candidates, choice, pick),
            *_fewer(run.candidates, choice, pick),
            *_turns(run.candidates, choice, pick),
            *_price(run, pick),
            *_barred(choice),
            *_doubts(pick, run),
        ),
    )


def _tie(choice: Choice, pick: Candidate) -> str:
    others = [one.name for one in choice.alike if one is not pick]
    return f", tied with {listed(others, most=3)}" if others else ""


def _better(choice: Choice, pick: Candidate) -> str:
    """The case that looks better in every respect, although it can't be told to be faster."""
    other = choice.better
    if other is None or not pick.memory or not other.memory or not pick.speed or not other.speed:
        return ""
    return (
        f" By estimate alone {other.name} is both faster ({other.speed.value / pick.speed.value:.2f}x) and "
        f"leaner ({other.memory / pick.memory:.0%} of the memory); {pick.name} is simpler."
    )


def _numbers(choice: Choice, pick: Candidate) -> str:
    """Speed, memory and energy of the pick, each with its 95% interval."""
    assert pick.speed is not None
    memory = "memory unknown"
    if pick.memory:
        memory = f"{'memory' if pick.memory_assumed else 'peak memory'} {pick.memory_text}"
    ends = selection_intervals(choice, pick)
    energy = [f"{_number(pick.joules, ends['joules_per_token'])} J/token"] if pick.joules else []
    return ", ".join([f"{_number(pick.speed, ends['tokens_per_s'])} tokens/s", memory, *energy])


def selection_intervals(choice: Choice, pick: Candidate) -> dict[str, tuple[float, float] | None]:
    """Ends of the 95% intervals of *pick* by column, which allow for its choice among its ties.

    None: the spread is unknown. Only the number that it was chosen by is flattered by the choice
    (``Interval.half_as_best_of``), and only toward the better.
    """
    tied, by_energy = len(choice.alike), choice.wish.goal == "tokens-per-joule"
    ends: dict[str, tuple[float, float] | None] = {}
    if speed := pick.speed:
        ends["tokens_per_s"] = _ends(speed, speed.half_as_best_of(1 if by_energy else tied), speed.half)
    if joules := pick.joules:
        ends["joules_per_token"] = _ends(
            joules, joules.half, joules.half_as_best_of(tied if by_energy else 1)
        )
    return ends


def _ends(interval: Interval, below: float | None, above: float | None) -> tuple[float, float] | None:
    """Ends of *interval* that are *below* and *above* its number in the logarithm."""
    if interval.half is None:
        return None
    return interval.value * math.exp(-(below or 0.0)), interval.value * math.exp(above or 0.0)


def _number(interval: Interval, ends: tuple[float, float] | None) -> str:
    if ends is None:
        return f"{interval.text()} (spread unknown)"
    return f"{interval.text()} ({interval.text(ends[0])} to {interval.text(ends[1])})"


def _nothing(every: Sequence[Candidate], choice: Choice) -> str:
    wish = choice.wish
    devices = count_text(wish.devices or 0, "device")
    if not every:
        return "No recommendation: the run has no cases."
    if not any(one.devices == wish.devices for one in every):
        measured = listed([str(size) for size in sorted({one.devices for one in every})])
        return f"No recommendation for {devices}: the run has cases on {measured}."
    known = [one for one, why in choice.left_out if why == "does not fit" and one.memory]
    if known and wish.memory is not None:
        least = min(known, key=lambda one: one.memory or 0.0)
        return (
            f"No measured case fits in {bytes_text(wish.memory)}: the one with the lowest memory, "
            f"{least.name}, needs {bytes_text(least.memory or 0.0)}."
        )
    return f"No recommendation for {devices}: {_why_none(choice)}."


def _provisional(choice: Choice) -> list[str]:
    """The order of the cases that only noise keeps from being recommended, and the remedy."""
    if not choice.provisional:
        return []
    order = [f"{one.name} ({one.speed.text()} tokens/s)" for one in choice.provisional if one.speed]
    return [
        f"Provisional order, from noisy trials, not a recommendation: {listed(order)}.",
        "Wait until the other processes have ended, and measure again with distbench run SUITE "
        "--repeat-noisy 3; where they leave CPUs idle, raise the limit with "
        "--set metrics.telemetry.max_foreign_cpu=0.5.",
    ]


def _why_none(choice: Choice) -> str:
    """The most frequent kind of reason against a case, how many cases have it, and the first of them."""
    reasons = [why for _, why in choice.left_out]
    if not reasons:
        return f"no case of {choice.wish.work or 'this work'} in {choice.wish.precision}"
    # each case that differs does so by numbers of its own, so that whole sentences would not add up
    kind, count = _commonest(reasons)
    alike = [why for why in reasons if _kind(why) == kind]
    example = alike[0] if len(set(alike)) == 1 else f"{kind}; the first: {alike[0]}"
    return alike[0] if len(reasons) == 1 else f"{count} of {len(reasons)} cases: {example}"


def _commonest(reasons: Sequence[str]) -> tuple[str, int]:
    """The most frequent kind of *reasons*, and how many are of it."""
    return Counter(map(_kind, reasons)).most_common(1)[0]


def _kind(reason: str) -> str:
    """What a reason begins with: a status, or what judged."""
    return reason.partition(":")[0]


def _lead(every: Sequence[Candidate], choice: Choice, pick: Candidate) -> list[str]:
    """What the pick is tied with, and the next one that it beats."""
    wish, sentences = choice.wish, []
    others = [one.name for one in choice.alike if one is not pick]
    if others:
        best, verb = choice.alike[0], "is" if len(others) == 1 else "are"
        lead = "" if best is pick else f" ({best.name}: {_against(best, pick, wish.goal)} {pick.name})"
        sentences.append(
            f"{listed(others, most=4)} {verb} statistically tied with it{lead}; {pick.name} is the simplest "
            f"of those within {wish.margin:.0%} of the best cautious estimate."
        )
        if more := choice.trials_to_settle:
            sentences.append(
                f"About {count_text(more, 'more trial')} of each of them would tell whether any is more than "
                f"{wish.unsettled:.0%} better (distbench run --resume RUN --until-settled)."
            )
    rest = [one for one in choice.ranked if one not in choice.alike and _is_beaten(one, pick, wish.goal)]
    if rest:
        among = f" among those at most {wish.within:.0%} slower than the fastest that fits"
        scope = among if wish.goal == "memory" else ""
        against = _against(pick, rest[0], wish.goal)
        measurably = "" if pick.speed and pick.speed.half is None else " measurably"
        sentences.append(f"{against} {rest[0].name}, the next{measurably} worse case{scope}.")
    elif not others:
        sentences.append(_alone(every, choice, pick))
    if pick.speed and pick.speed.half is None:
        sentences.append(
            "No case on this number of devices was measured twice, so the noise is unknown; "
            "set measure.trials to 3 or more."
        )
    return sentences


def _alone(every: Sequence[Candidate], choice: Choice, pick: Candidate) -> str:
    precisions = sorted({one.precision for one in every} - {pick.precision})
    others = [each for each in precisions if choose(every, replace(choice.wish, precision=each)).pick]
    if not others:
        return "It is the only case that can be recommended."
    see = [f"distbench pick RUN --precision {shlex.quote(other)}" for other in others]
    return f"It is the only case in {pick.precision} that can be recommended; see also {listed(see)}."


def _fewer(every: Sequence[Candidate], choice: Choice, pick: Candidate) -> list[str]:
    """The pick on fewer devices, if it is measurably faster: more of them then cost time."""
    sizes = {one.devices for one in every if one.devices < pick.devices}
    picks = [other for size in sizes if (other := choose(every, replace(choice.wish, devices=size)).pick)]
    faster = [
        (other.speed, other)
        for other in picks
        if other.speed and pick.speed and other.speed.value > pick.speed.value
        if other.speed.is_apart_from(pick.speed)
    ]
    if not faster:
        return []
    pace, other = max(faster, key=lambda pair: pair[0].value)
    verb = "is" if other.devices == 1 else "are"
    return [
        f"{count_text(other.devices, 'device')} {verb} faster: {other.name}, {pace.text()} tokens/s "
        f"(distbench pick RUN --devices {other.devices})."
    ]


def _is_beaten(one: Candidate, pick: Candidate, goal: Goal) -> bool:
    """Whether the pick is measurably better: the best of its ties may beat a case that it does not."""
    if goal == "memory" and not pick.has_memory_of(one):
        return (pick.memory or 0.0) < (one.memory or 0.0)
    mine, theirs = pick.measured(goal), one.measured(goal)
    return mine is not None and theirs is not None and mine.is_apart_from(theirs)


def _against(one: Candidate, other: Candidate, goal: Goal) -> str:
    if goal == "memory" and one.memory and other.memory and not one.has_memory_of(other):
        return f"{one.memory / other.memory:.0%} of the memory of"
    mine, theirs = one.measured(goal), other.measured(goal)
    assert mine and theirs
    ratio = mine.ratio(theirs)
    value, low, high = ratio_texts(ratio.value, ratio.low, ratio.high)
    spread = "" if ratio.half is None else f" ({low} to {high})"
    compared = "the energy per token of" if goal == "tokens-per-joule" else "as fast as"
    return f"{value}x{spread} {compared}"


def _turns(every: Sequence[Candidate], choice: Choice, pick: Candidate) -> list[str]:
    sentences: list[str] = []
    before = pick
    for below, then in turns(every, choice):
        if then.pick is None:
            break
        if (then.pick.memory or 0.0) > (1 - _WORTH_SAVING) * (before.memory or 0.0):
            continue
        sentences.append(
            f"If a device has less than {bytes_text(below)}, use {then.pick.name}"
            f" ({bytes_text(then.pick.memory or 0.0)}, {_slower(then.pick, pick)})."
        )
        before = then.pick
    return sentences[:_MOST_TURNS]


def _slower(one: Candidate, pick: Candidate) -> str:
    assert one.speed and pick.speed
    ratio = one.speed.value / pick.speed.value
    if not one.speed.is_apart_from(pick.speed):
        by_estimate = f"{1 - ratio:.0%} slower by estimate, within noise"
        return by_estimate if ratio < 1 - _WORTH_A_NUMBER else "no measurable slowdown"
    return f"{percent_text(1 - ratio)} slower" if ratio < 1 else f"{percent_text(ratio - 1)} faster"


def _price(run: AnalysedRun, pick: Candidate) -> list[str]:
    cost = cost_of(run.info.suite)
    values = next(row.values for row in run.cases if row.case.id == pick.id)
    said = sentence(values, cost) if cost else ""
    return [said] if said else []


def _barred(choice: Choice) -> list[str]:
    """Reasons against faster cases; without a pick, those that its headline does not give."""
    pick = choice.pick
    pace = pick.speed.value if pick and pick.speed else 0.0
    told = "" if pick or not choice.left_out else _commonest([why for _, why in choice.left_out])[0]
    barred = [
        (one.speed.value, one)
        for one, why in choice.left_out
        if one.speed and one.speed.value > pace and one.barred == why and _kind(why) != told
    ]
    by_reason = grouped(sorted(barred, key=lambda pair: -pair[0]), lambda pair: pair[1].barred)
    return [
        f"{listed([one.name for _, one in same])} {_verb(len(same), bool(pick))} not recommended: {why}."
        for why, same in [*by_reason.items()][:_MOST_BARRED]
    ]


def _verb(count: int, is_faster: bool) -> str:
    was, is_ = ("was", "is") if count == 1 else ("were", "are")
    return f"{was} faster, but {is_}" if is_faster else is_


def _doubts(pick: Candidate, run: AnalysedRun) -> list[str]:
    """Whether the pick is known to be the same training and the same work."""
    verdicts = next(row.verdicts for row in run.cases if row.case.id == pick.id)
    doubts = []
    for kind, results in job_results().items():
        verdict, unasked = verdicts.get(kind), results.kind.unasked
        if verdict and (unasked or verdict.gravity == "bad"):
            doubts.append(f"{kind.capitalize()}: {one_line(verdict.sentence)}.")
        elif unasked and not verdict:
            doubts.append(unasked)
    if unfair := run.parity.findings.get(pick.id):
        more = f", and {len(unfair) - 1} more" if len(unfair) > 1 else ""
        doubts.append(f"Not known to be the same work: {one_line(str(unfair[0]))}{more}.")
    return doubts
