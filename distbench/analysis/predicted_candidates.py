"""Candidates that were not measured, and may be the fastest by what a probe of the run predicts of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from distbench.analysis.case_summary import PENDING, CaseSummary
from distbench.analysis.choice import MEASURE_IT, Candidate
from distbench.analysis.prospects import TuningCase, corrected_speed, may_be_fastest
from distbench.core.grouping import group_by
from distbench.core.units import format_number
from distbench.prediction import PredictedValue
from distbench.prediction.cases import CasePrediction


def with_predictions(
    candidates: Sequence[Candidate],
    rows: Mapping[str, CaseSummary],
    predictions: Mapping[str, CasePrediction],
) -> list[Candidate]:
    """*candidates*, where those worth a measurement have a prediction and a mark that bars them.

    They have no trial, and by prediction may be faster than the cases that can be recommended.

    Args:
        rows: Summaries of the cases, by their ids, as *predictions*.
    """
    if not predictions:
        return [*candidates]
    marked: dict[str, Candidate] = {}
    for place in group_by(candidates, lambda one: (one.devices, one.work, one.precision)).values():
        prospects = {one.id: _tuning_case(one, rows[one.id], predictions.get(one.id)) for one in place}
        every = [*prospects.values()]
        for one in place:
            prospect = prospects[one.id]
            speed = corrected_speed(prospect, every)
            if speed is not None and may_be_fastest(prospect, every):
                marked[one.id] = _marked(one, speed, prospect.is_upper_bound, predictions[one.id])
    return [marked.get(one.id, one) for one in candidates]


def _tuning_case(one: Candidate, row: CaseSummary, found: CasePrediction | None) -> TuningCase:
    # what can't be recommended is no reason to leave out others
    measured = one.speed.value if one.speed and (one.is_noisy or not one.exclusion_reason) else None
    # a suite may ask for no trials at all
    trials = 0 if row.status == PENDING else 1
    if found is None or isinstance(found.step, str):
        return TuningCase(row.case, None, measured=measured, trials=trials)
    return TuningCase(row.case, found.tokens_per_s, bool(found.step.unpredicted_part), measured, trials)


def _marked(one: Candidate, speed: PredictedValue, is_bound: bool, found: CasePrediction) -> Candidate:
    memory = None if isinstance(found.memory, str) else found.memory.peak.low
    exclusion_reason = f"{MEASURE_IT} ({speed_text(speed, is_bound)})"
    return replace(one, predicted=speed, predicted_memory=memory, exclusion_reason=exclusion_reason)


def speed_text(speed: PredictedValue, is_bound: bool) -> str:
    """Predicted *speed* with its interval, for people; *is_bound*: its step lacks a part."""
    half = (speed.high - speed.low) / 2
    texts = [format_number(each, half) for each in (speed.value, speed.low, speed.high)]
    return f"at most {texts[2]} tokens/s" if is_bound else f"{texts[0]} tokens/s, {texts[1]} to {texts[2]}"
