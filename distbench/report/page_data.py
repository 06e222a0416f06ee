"""Data for the page's scripts: the candidates to choose among, and all numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.choice import (
    DEFAULT_MAX_SLOWDOWN,
    DEFAULT_TIE_MARGIN,
    GOALS,
    MEMORY_TOLERANCE,
    Candidate,
    Requirements,
    complete_requirements,
)
from distbench.analysis.run import RunAnalysis
from distbench.analysis.statistics.intervals import ConfidenceInterval
from distbench.analysis.step_limits import StepLimit
from distbench.analysis.wording.recommendation import recommend
from distbench.core.text import shorten
from distbench.core.units import format_bytes
from distbench.record.run_folder import RunInfo

_GOAL_WORDS = {
    "throughput": "fastest that fits",
    "memory": "lowest memory near the fastest",
    "tokens-per-joule": "least energy per token",
}
_MAX_TEXT_LENGTH = 160


def picker_data(run: RunAnalysis) -> dict[str, Any]:
    """Initial recommendation and the values of its fields; ``data`` is for the script."""
    candidates = run.candidates
    energy = any(one.joules for one in candidates)
    assumed = max((one.memory_assumed for one in candidates), default=0.0)
    return {
        "answer": recommend(run),
        "limit": pick_limit(run),
        "wish": complete_requirements(candidates, Requirements()),
        "goals": {goal: _GOAL_WORDS[goal] for goal in GOALS if energy or goal != "tokens-per-joule"},
        "assumed": format_bytes(assumed) if assumed else "",
        "devices": sorted({one.devices for one in candidates}),
        "precisions": list(dict.fromkeys(one.precision for one in candidates)),
        "works": list(dict.fromkeys(one.work for one in candidates)),
        "labels": list(dict.fromkeys(one.label for one in candidates)),
        "data": {
            "candidates": [_candidate_data(one) for one in candidates],
            "same": MEMORY_TOLERANCE,
            "within": DEFAULT_MAX_SLOWDOWN,
            "margin": DEFAULT_TIE_MARGIN,
        },
    }


def pick_limit(run: RunAnalysis) -> StepLimit | None:
    """Limit of the step of the recommended case; None if there is no such case, or its limit is unknown."""
    pick = run.selection.pick
    found = (limit for row, limit in run.step_limits if pick and row.case.id == pick.id)
    return next((limit for limit in found if isinstance(limit, StepLimit)), None)


def _candidate_data(one: Candidate) -> dict[str, Any]:
    """A candidate for the script, with texts short enough for a table."""
    shown = vars(one) | {"speed": _interval_triple(one.speed), "joules": _interval_triple(one.joules)}
    if one.predicted:
        shown["predicted"] = True
    else:
        # most pages have none
        del shown["predicted"], shown["predicted_memory"]
    reasons = ("exclusion_reason", "unknown", "memory_unknown", "joules_unknown")
    return shown | {name: shorten(shown[name], _MAX_TEXT_LENGTH) for name in reasons}


def _interval_triple(interval: ConfidenceInterval | None) -> list[float | None] | None:
    """Value, half the width of its interval, and that for comparisons, both of the logarithm."""
    if interval is None:
        return None
    reach = (
        interval.half_log_width
        if interval.simultaneous_half_log_width is None
        else interval.simultaneous_half_log_width
    )
    return [interval.value, *(_rounded(each) for each in (interval.half_log_width, reach))]


def _rounded(number: float | None) -> float | None:
    """Round *number* to the digits that do not depend on the summation order of linear algebra."""
    return number if number is None else float(f"{number:.12g}")


_MAX_REASON_LENGTH = 2000
_FACTS: dict[str, Callable[[CaseSummary], Any]] = {
    "case": lambda row: row.case.name,
    "case_id": lambda row: row.case.id,
    "strategy": lambda row: row.case.strategy.name,
    "label": lambda row: row.case.label,
    "world_size": lambda row: row.case.world_size,
    "global_batch_size": lambda row: row.case.batch.global_batch_size,
    "micro_batch_size": lambda row: row.case.batch.micro_batch_size,
    "gradient_accumulation_steps": lambda row: row.case.batch.gradient_accumulation_steps,
    "precision": lambda row: row.case.precision.label,
    "status": lambda row: row.status,
    "verdict": lambda row: row.verdicts["equivalence"].word if "equivalence" in row.verdicts else None,
    "reason": lambda row: row.reason[:_MAX_REASON_LENGTH],
    "trials": lambda row: row.trials,
    "failed_trials": lambda row: row.failed,
    "degraded_trials": lambda row: row.degraded_trials,
    "degraded": lambda row: row.degraded,
    "relative_to_ddp": lambda row: row.relative_throughput,
}


def case_data(
    info: RunInfo, cases: Sequence[CaseSummary], columns: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """The run for the page's script: names once, numbers by position.

    A value is [value in the tables, lowest, highest, trials] over trials, null if there is none.
    """
    described = ("unit", "better", "over_ranks", "doc")
    return {
        "run_id": info.run_id,
        "suite": info.suite_name,
        "facts": list(_FACTS),
        "columns": [
            {"name": name, **{key: column[key] for key in described}} for name, column in columns.items()
        ],
        "cases": [
            [[fact(row) for fact in _FACTS.values()], [_value(row, name) for name in columns]]
            for row in cases
        ],
    }


def _value(row: CaseSummary, name: str) -> list[float] | None:
    estimate = row.values.get(name)
    return [estimate.value, estimate.low, estimate.high, estimate.trial_count] if estimate else None
