"""State the recommended case, its margin, its caveats and what would change it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from distbench.analysis.choice import Candidate, Goal, Requirements, Selection, select_case
from distbench.analysis.cost import COST_COLUMNS
from distbench.analysis.job_results import job_results
from distbench.analysis.memory_ranges import memory_thresholds
from distbench.analysis.run import RunAnalysis
from distbench.analysis.statistics.intervals import ConfidenceInterval
from distbench.analysis.wording.exclusions import (
    excluded_but_faster,
    main_exclusion,
    no_recommendation,
    provisional_order,
)
from distbench.analysis.wording.script_description import script_training
from distbench.analysis.wording.trace_description import trace_training
from distbench.core.text import join_limited, one_line
from distbench.core.units import (
    format_bytes,
    format_count,
    format_number,
    format_percent,
    format_ratio_interval,
)

_MAX_MEMORY_STEPS = 3
# an alternative that saves less is not worth a sentence
_MIN_MEMORY_SAVING = 0.05
# a smaller estimated slowdown is not worth a number
_MIN_SHOWN_SLOWDOWN = 0.03


@dataclass(frozen=True)
class Recommendation:
    """A recommendation, with its reasons."""

    headline: str
    """One sentence: the case to use, with its numbers."""
    reasons: tuple[str, ...]
    """Sentences: the cases it beats or is tied with, what would change the choice, and unknowns."""


def recommend(run: RunAnalysis, requirements: Requirements | None = None) -> Recommendation:
    """Recommendation for *requirements*, by default without special requirements."""
    if requirements is None and (trained := script_training(run) or trace_training(run)):
        return Recommendation(*trained)
    choice = select_case(run.candidates, requirements) if requirements else run.selection
    pick = choice.pick
    if pick is None:
        return Recommendation(
            no_recommendation(run.candidates, choice),
            (
                *provisional_order(choice),
                *_to_measure(choice),
                *_by_device_count(run.candidates, choice),
                *excluded_but_faster(choice),
            ),
        )
    bottleneck = run.inter_node_bottlenecks.get(pick.id)
    by, why = (
        (f", limited by {bottleneck.cause}", [f"{pick.name} is {bottleneck.sentence}."])
        if bottleneck
        else ("", [])
    )
    return Recommendation(
        f"Train with {pick.name} on {format_count(pick.devices, 'device')}{_tie_text(choice, pick)}{by}"
        f"{_noise_text(choice)}: "
        f"{_metrics_text(choice, pick)}.{_dominating_case_text(choice, pick)}",
        (
            *why,
            *_comparison_sentences(run.candidates, choice, pick),
            *_to_measure(choice),
            *_fewer_devices(run.candidates, choice, pick),
            *_by_device_count(run.candidates, choice),
            *_memory_sentences(run.candidates, choice, pick),
            *_cost_sentences(run, pick),
            *excluded_but_faster(choice),
            *_caveats(pick, run),
        ),
    )


def _tie_text(selection: Selection, pick: Candidate) -> str:
    others = [one.name for one in selection.tied if one is not pick]
    return f", tied with {join_limited(others, limit=3)}" if others else ""


def _noise_text(selection: Selection) -> str:
    """Cases that are measurably worse than the pick, but were only measured under noise."""
    noisy = [one.name for one in selection.provisional if one.is_noisy]
    verb = "was" if len(noisy) == 1 else "were"
    return (
        f" (provisional: {join_limited(noisy, limit=3)} {verb} measured on a noisy machine)" if noisy else ""
    )


def _dominating_case_text(selection: Selection, pick: Candidate) -> str:
    """The case with better point estimates in every respect that is not measurably faster."""
    other = selection.dominating
    if other is None or not pick.memory or not other.memory or not pick.speed or not other.speed:
        return ""
    return (
        f" The point estimates favor {other.name} in speed "
        f"({other.speed.value / pick.speed.value:.2f}x) and in memory "
        f"({other.memory / pick.memory:.0%}); {pick.name} is simpler."
    )


def _metrics_text(selection: Selection, pick: Candidate) -> str:
    """Speed, memory and energy of the pick, each with its 95% interval."""
    assert pick.speed is not None
    memory = "memory unknown"
    if pick.memory:
        memory = f"{'memory' if pick.memory_assumed else 'peak memory'} {pick.memory_text}"
    ends = selection_intervals(selection, pick)
    energy = [f"{pick.joules.interval_text(ends['joules_per_token'])} J/token"] if pick.joules else []
    return ", ".join([f"{pick.speed.interval_text(ends['tokens_per_s'])} tokens/s", memory, *energy])


def selection_intervals(selection: Selection, pick: Candidate) -> dict[str, tuple[float, float] | None]:
    """Ends of the 95% intervals of *pick* by column, corrected for its selection among its ties.

    None: the spread is unknown. The selection biases only the number that it was based on
    (``ConfidenceInterval.half_log_width_after_selection``), and only toward the better.
    """
    tied, by_energy = len(selection.tied), selection.requirements.goal == "tokens-per-joule"
    ends: dict[str, tuple[float, float] | None] = {}
    if speed := pick.speed:
        ends["tokens_per_s"] = _interval_bounds(
            speed, speed.half_log_width_after_selection(1 if by_energy else tied), speed.half_log_width
        )
    if joules := pick.joules:
        ends["joules_per_token"] = _interval_bounds(
            joules, joules.half_log_width, joules.half_log_width_after_selection(tied if by_energy else 1)
        )
    return ends


def _interval_bounds(
    interval: ConfidenceInterval, below: float | None, above: float | None
) -> tuple[float, float] | None:
    """Ends of *interval*, *below* and *above* its value in the logarithm."""
    if interval.half_log_width is None:
        return None
    return interval.value * math.exp(-(below or 0.0)), interval.value * math.exp(above or 0.0)


def _comparison_sentences(every: Sequence[Candidate], selection: Selection, pick: Candidate) -> list[str]:
    """Cases that the pick is tied with, and the next one that it beats."""
    wish, sentences = selection.requirements, []
    others = [one.name for one in selection.tied if one is not pick]
    if others:
        best, verb = selection.tied[0], "is" if len(others) == 1 else "are"
        lead = "" if best is pick else f" ({best.name}: {_ratio_text(best, pick, wish.goal)} {pick.name})"
        sentences.append(
            f"{join_limited(others, limit=4)} {verb} statistically tied with {pick.name}{lead}, "
            f"which is the simplest case within {wish.margin:.0%} of the best cautious estimate."
        )
        if more := selection.trials_to_settle:
            sentences.append(
                f"About {format_count(more, 'more trial')} per case would show whether any is more "
                f"than {wish.unsettled_margin:.0%} better: distbench run --resume RUN "
                "--until-settled."
            )
    rest = [one for one in selection.ranked if one not in selection.tied and _is_worse(one, pick, wish.goal)]
    if rest:
        among = f" among those at most {wish.within:.0%} slower than the fastest that fits"
        scope = among if wish.goal == "memory" else ""
        against = _ratio_text(pick, rest[0], wish.goal)
        measurably = "" if pick.speed and pick.speed.half_log_width is None else " measurably"
        sentences.append(f"{against} {rest[0].name}, the next{measurably} worse case{scope}.")
    elif not others:
        sentences.append(_only_case_sentence(every, selection, pick))
    if pick.speed and pick.speed.half_log_width is None:
        sentences.append(
            "No case on this number of devices was measured twice, so the noise is unknown; "
            "set measure.trials to 3 or more."
        )
    return sentences


def _only_case_sentence(every: Sequence[Candidate], selection: Selection, pick: Candidate) -> str:
    precisions = sorted({one.precision for one in every} - {pick.precision})
    others = [
        each
        for each in precisions
        if select_case(every, replace(selection.requirements, precision=each)).pick
    ]
    if not others:
        return "It is the only case that can be recommended."
    see = [f"distbench pick RUN --precision {shlex.quote(other)}" for other in others]
    return f"It is the only case in {pick.precision} that can be recommended; see also {join_limited(see)}."


def _fewer_devices(every: Sequence[Candidate], selection: Selection, pick: Candidate) -> list[str]:
    """Note on the pick with fewer devices, if it is measurably faster: more devices then cost time."""
    sizes = {one.devices for one in every if one.devices < pick.devices}
    picks = [
        other
        for size in sizes
        if (other := select_case(every, replace(selection.requirements, devices=size)).pick)
    ]
    faster = [
        (other.speed, other)
        for other in picks
        if other.speed and pick.speed and other.speed.value > pick.speed.value
        if other.speed.differs_from(pick.speed)
    ]
    if not faster:
        return []
    pace, other = max(faster, key=lambda pair: pair[0].value)
    verb = "is" if other.devices == 1 else "are"
    return [
        f"{format_count(other.devices, 'device')} {verb} faster: {other.name}, {pace.text()} tokens/s "
        f"(distbench pick RUN --devices {other.devices})."
    ]


def _by_device_count(every: Sequence[Candidate], selection: Selection) -> list[str]:
    """The choice for each number of devices, with its speed-up over one device."""
    sizes = sorted({one.devices for one in every})
    choices = [select_case(every, replace(selection.requirements, devices=size)) for size in sizes]
    choices = [each for each in choices if each.ranked or each.excluded]
    if len(choices) < 2 or not any(each.pick for each in choices):
        return []
    first = choices[0].pick
    base = first.speed if first and first.devices == 1 else None
    return [f"By number of devices: {'; '.join(_device_count_text(each, base) for each in choices)}."]


def _device_count_text(selection: Selection, base: ConfidenceInterval | None) -> str:
    """The pick of *selection*, or the reason why there is none; *base* is the pace of one device."""
    size, pick = selection.requirements.devices or 0, selection.pick
    if pick is None or pick.speed is None:
        noisy = selection.provisional
        why = f"not settled, {noisy[0].name} leads under noise" if noisy else main_exclusion(selection)
        return f"{size}: {why}"
    text = f"{size}: {pick.name}, {pick.speed.text()} tokens/s"
    if base is None or size == 1:
        return text
    ratio = pick.speed.ratio(base)
    value, low, high = format_ratio_interval(ratio.value, ratio.low, ratio.high)
    spread = "" if ratio.half_log_width is None else f" ({low} to {high})"
    return f"{text}, {value}x{spread} one device, efficiency {ratio.value / size:.0%}"


def _is_worse(one: Candidate, pick: Candidate, goal: Goal) -> bool:
    """True if the pick is measurably better: the best of its ties may beat a case that it does not."""
    if goal == "memory" and not pick.needs_same_memory_as(one):
        return (pick.memory or 0.0) < (one.memory or 0.0)
    mine, theirs = pick.estimate_for(goal), one.estimate_for(goal)
    return mine is not None and theirs is not None and mine.differs_from(theirs)


def _ratio_text(one: Candidate, other: Candidate, goal: Goal) -> str:
    if goal == "memory" and one.memory and other.memory and not one.needs_same_memory_as(other):
        return f"{one.memory / other.memory:.0%} of the memory of"
    mine, theirs = one.estimate_for(goal), other.estimate_for(goal)
    assert mine and theirs
    ratio = mine.ratio(theirs)
    value, low, high = format_ratio_interval(ratio.value, ratio.low, ratio.high)
    spread = "" if ratio.half_log_width is None else f" ({low} to {high})"
    compared = "the energy per token of" if goal == "tokens-per-joule" else "as fast as"
    return f"{value}x{spread} {compared}"


def _memory_sentences(every: Sequence[Candidate], selection: Selection, pick: Candidate) -> list[str]:
    sentences: list[str] = []
    before = pick
    for below, then in memory_thresholds(every, selection):
        if then.pick is None:
            break
        if (then.pick.memory or 0.0) > (1 - _MIN_MEMORY_SAVING) * (before.memory or 0.0):
            continue
        sentences.append(
            f"If a device has less than {format_bytes(below)}, use {then.pick.name}"
            f" ({format_bytes(then.pick.memory or 0.0)}, {_slowdown_text(then.pick, pick)})."
        )
        before = then.pick
    return sentences[:_MAX_MEMORY_STEPS]


def _slowdown_text(one: Candidate, pick: Candidate) -> str:
    assert one.speed and pick.speed
    ratio = one.speed.value / pick.speed.value
    if not one.speed.differs_from(pick.speed):
        by_estimate = f"{1 - ratio:.0%} slower, not significant"
        return by_estimate if ratio < 1 - _MIN_SHOWN_SLOWDOWN else "no measurable slowdown"
    return f"{format_percent(1 - ratio)} slower" if ratio < 1 else f"{format_percent(ratio - 1)} faster"


def _cost_sentences(run: RunAnalysis, pick: Candidate) -> list[str]:
    """Cost of the pick, if the price of a device is known."""
    cost = run.device_cost
    values = next(row.values for row in run.cases if row.case.id == pick.id)
    if cost is None or not all(name in values for name in COST_COLUMNS):
        return []
    each, hours, whole = (format_number(values[name].value) for name in COST_COLUMNS)
    lead = f"At {format_number(cost.per_device_hour)} {cost.currency} per device-hour, 1e9 tokens cost"
    if cost.tokens == 1e9:
        return [f"{lead} {each} {cost.currency} and take {hours} h."]
    tokens = f"{format_number(cost.tokens)} tokens"
    return [f"{lead} {each} {cost.currency}; {tokens} take {hours} h and {whole} {cost.currency}."]


def _to_measure(selection: Selection) -> list[str]:
    """Cases that may be the fastest by prediction, and how to measure them."""
    predicted_texts = [one.predicted_text for one in selection.to_measure]
    if not predicted_texts:
        return []
    faster = "may be faster" if selection.pick else "may be the fastest"
    return [
        f"By prediction, not measured: {join_limited(predicted_texts, limit=3)} {faster}. Measure "
        f"{'it' if len(predicted_texts) == 1 else 'them'} with distbench tune --resume RUN."
    ]


def _caveats(pick: Candidate, run: RunAnalysis) -> list[str]:
    """Doubts that the pick is the same training and the same work."""
    verdicts = next(row.verdicts for row in run.cases if row.case.id == pick.id)
    doubts = []
    for kind, results in job_results().items():
        verdict, unasked = verdicts.get(kind), results.kind.missing_verdict_advice
        if verdict and (unasked or verdict.gravity == "bad"):
            doubts.append(f"{kind.capitalize()}: {one_line(verdict.sentence)}.")
        elif unasked and not verdict:
            doubts.append(unasked)
    if unfair := run.parity.findings.get(pick.id):
        more = f", and {len(unfair) - 1} more" if len(unfair) > 1 else ""
        doubts.append(f"Possibly not the same work: {one_line(str(unfair[0]))}{more}.")
    return doubts
