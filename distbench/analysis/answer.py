"""A choice in sentences: what to take, what it beats and by how much, and what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.candidates import candidates
from distbench.analysis.choice import SAME_MEMORY, Candidate, Choice, Goal, Wish, choose, turns
from distbench.analysis.noise import Interval
from distbench.analysis.parity import findings
from distbench.analysis.summary import CaseSummary
from distbench.analysis.text import listed, one_line
from distbench.analysis.verdicts import sentence
from distbench.units import bytes_text, number_text

_MOST_TURNS = 3
# a turn that saves less than that is not worth a sentence
_WORTH_SAVING = 0.05
_MOST_BARRED = 3


@dataclass(frozen=True)
class Answer:
    """What to say of a choice."""

    headline: str
    """One sentence: what to take, with its numbers."""
    reasons: tuple[str, ...]
    """Sentences: what it beats, what it is not told from, what would change it, what is not known."""


def answer(
    cases: Sequence[CaseSummary], wish: Wish | None = None, every: Sequence[Candidate] | None = None
) -> Answer:
    """Return what to take of the cases of a run; *every* are its candidates, where they are known."""
    every = candidates(cases) if every is None else every
    choice = choose(every, wish or Wish())
    return Answer(headline(every, choice), tuple(reasons(every, choice, cases)))


def headline(every: Sequence[Candidate], choice: Choice) -> str:
    """Return what to take, with its numbers; or why there is nothing to take."""
    pick = choice.pick
    if pick is None:
        return _nothing(every, choice)
    return f"Train with {pick.name} on {_devices(pick.devices)}: {numbers(pick)}."


def reasons(every: Sequence[Candidate], choice: Choice, cases: Sequence[CaseSummary]) -> list[str]:
    """Return what stands behind a choice, the most telling first."""
    if choice.pick is None:
        return _barred(choice)
    return [
        *_lead(choice, choice.pick),
        *_turns(every, choice, choice.pick),
        *_barred(choice),
        *_doubts(choice.pick, cases),
    ]


def numbers(one: Candidate) -> str:
    """Return speed, memory and energy of a candidate, each with its interval of 95 %."""
    assert one.speed is not None
    memory = f"{bytes_text(one.memory)} on the rank that needs most" if one.memory else "memory not known"
    told = [f"{_number(one.speed)} tokens/s", memory]
    if one.joules:
        told.append(f"{_number(one.joules)} J a token")
    return ", ".join(told)


def _number(interval: Interval) -> str:
    text = number_text(interval.value)
    if interval.half is None:
        return f"{text} (spread not known)"
    return f"{text} ({number_text(interval.low)} to {number_text(interval.high)})"


def _nothing(every: Sequence[Candidate], choice: Choice) -> str:
    wish = choice.wish
    if not every:
        return "Nothing can be recommended: the run has no cases."
    if not any(one.devices == wish.devices for one in every):
        there = listed([str(size) for size in sorted({one.devices for one in every})])
        return f"Nothing can be recommended on {_devices(wish.devices or 0)}: there are cases on {there}."
    known = [one for one, why in choice.left_out if why == "does not fit" and one.memory]
    if known and wish.memory is not None:
        least = min(known, key=lambda one: one.memory or 0.0)
        return (
            f"Nothing that was measured fits in {bytes_text(wish.memory)}: the leanest, {least.name}, "
            f"needs {bytes_text(least.memory or 0.0)}."
        )
    return f"Nothing can be recommended on {_devices(wish.devices or 0)}: {_why_none(choice)}."


def _why_none(choice: Choice) -> str:
    """Return the reason that stands in the way of most cases, and how many have it."""
    found = [why for _, why in choice.left_out]
    if not found:
        return f"no case of {choice.wish.work or 'this work'} in {choice.wish.precision}"
    why = max(found, key=found.count)
    count = found.count(why)
    return why if count == len(found) == 1 else f"of {count} of {len(found)} cases, {why}"


def _lead(choice: Choice, pick: Candidate) -> list[str]:
    """Return how it stands to those that it was not told from, and to the next one."""
    wish, said = choice.wish, []
    others = [one.name for one in choice.alike if one is not pick]
    if others:
        verb = "is" if len(others) == 1 else "are"
        said.append(
            f"{listed(others, most=4)} {verb} within the noise of the trials{_best(choice, pick)}; "
            f"{pick.name} is the simplest of them."
        )
    rest = [one for one in choice.ranked if one not in choice.alike and _is_beaten(one, pick, wish.goal)]
    if rest:
        against = _against(pick, rest[0], wish.goal)
        said.append(f"It is {against} {rest[0].name}, the next that it beats{_goal(choice)}.")
    elif not others:
        said.append("It is the only one that can be recommended.")
    if pick.speed and pick.speed.half is None:
        said.append(
            "No case on as many devices was measured twice, so the noise is not known: "
            "measure.trials = 3 or more tells it."
        )
    return said


def _best(choice: Choice, pick: Candidate) -> str:
    """Return by how much the best of those that are alike seems better than the pick."""
    best = choice.alike[0]
    if best is pick:
        return ""
    return f" ({best.name}: {_against(best, pick, choice.wish.goal)} {pick.name})"


def _is_beaten(one: Candidate, pick: Candidate, goal: Goal) -> bool:
    """Return whether the pick is better by more than the noise: the best may beat what it does not."""
    if goal == "memory" and not _same_memory(pick, one):
        return (pick.memory or 0.0) < (one.memory or 0.0)
    mine, theirs = (pick.joules, one.joules) if goal == "tokens-per-joule" else (pick.speed, one.speed)
    return mine is not None and theirs is not None and mine.is_apart_from(theirs)


def _same_memory(one: Candidate, other: Candidate) -> bool:
    less, more = sorted((one.memory or 0.0, other.memory or 0.0))
    return more <= less * (1 + SAME_MEMORY)


def _goal(choice: Choice) -> str:
    if choice.wish.goal == "memory":
        return f" among those at most {choice.wish.within:.0%} slower than the fastest that fits"
    return ""


def _against(one: Candidate, other: Candidate, goal: Goal) -> str:
    if goal == "memory" and one.memory and other.memory and not _same_memory(one, other):
        return f"at {one.memory / other.memory:.0%} of the memory of"
    mine, theirs = (one.joules, other.joules) if goal == "tokens-per-joule" else (one.speed, other.speed)
    assert mine and theirs
    ratio = mine.ratio(theirs)
    what = "times the energy a token of" if goal == "tokens-per-joule" else "times as fast as"
    return f"{_ratio(ratio)} {what}"


def _ratio(ratio: Interval) -> str:
    return f"{ratio.value:.2f}" + ("" if ratio.half is None else f" ({ratio.low:.2f} to {ratio.high:.2f})")


def _turns(every: Sequence[Candidate], choice: Choice, pick: Candidate) -> list[str]:
    said: list[str] = []
    before = pick
    for below, then in turns(every, choice):
        if then.pick is None:
            # what nothing fits in is told once, at the end of what is told
            break
        if (then.pick.memory or 0.0) > (1 - _WORTH_SAVING) * (before.memory or 0.0):
            continue
        said.append(
            f"With less than {bytes_text(below)} a device take {then.pick.name}"
            f" ({bytes_text(then.pick.memory or 0.0)}){_slower(then.pick, pick)}."
        )
        before = then.pick
    return said[:_MOST_TURNS]


def _slower(one: Candidate, pick: Candidate) -> str:
    assert one.speed and pick.speed
    if not one.speed.is_apart_from(pick.speed):
        return ", no slower beyond the noise"
    times = pick.speed.value / one.speed.value
    return f", {times:.2f} times slower" if times > 1 else f", {1 / times:.2f} times faster"


def _barred(choice: Choice) -> list[str]:
    """Return what would have been better but is not recommended, with why."""
    pick = choice.pick
    better = [
        one
        for one, why in choice.left_out
        if one.barred == why
        and one.speed
        and (not pick or not pick.speed or one.speed.value > pick.speed.value)
    ]
    better.sort(key=lambda one: -(one.speed.value if one.speed else 0.0))
    verb = "was faster, but is" if pick else "is"
    return [f"{one.name} {verb} not recommended: {one.barred}." for one in better[:_MOST_BARRED]]


def _doubts(pick: Candidate, cases: Sequence[CaseSummary]) -> list[str]:
    """Return whether the pick is known to be the same training and the same work."""
    row = next(row for row in cases if row.case.id == pick.id)
    checked = row.verdict and f"Same training as its reference? {sentence(row.verdict)}."
    unfair = findings(cases).get(pick.id, [])
    said = [checked or "Whether it is the same training was not checked: distbench run --check tells."]
    if unfair:
        more = f", and {len(unfair) - 1} more" if len(unfair) > 1 else ""
        said.append(f"Not known to be the same work: {one_line(str(unfair[0]))}{more}.")
    return said


def _devices(count: int) -> str:
    return f"{count} device{'' if count == 1 else 's'}"
