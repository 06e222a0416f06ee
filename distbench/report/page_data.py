"""What the scripts of the page read, as plain data: the candidates to choose among, and all numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.choice import GOALS, MARGIN, SAME_MEMORY, WITHIN, Candidate, Wish, settle
from distbench.analysis.recommendation import answer
from distbench.analysis.run import AnalysedRun
from distbench.analysis.statistics.intervals import Interval
from distbench.core.text import shorten
from distbench.core.units import bytes_text
from distbench.record.run_folder import RunInfo

_GOAL_WORDS = {
    "throughput": "fastest that fits",
    "memory": "lowest memory near the fastest",
    "tokens-per-joule": "least energy per token",
}
_LONGEST = 160


def picker(run: AnalysedRun) -> dict[str, Any]:
    """The answer as it stands when the page opens, and what its fields offer; ``data`` is for its script."""
    candidates = run.candidates
    energy = any(one.joules for one in candidates)
    assumed = max((one.memory_assumed for one in candidates), default=0.0)
    return {
        "answer": answer(run),
        "wish": settle(candidates, Wish()),
        "goals": {goal: _GOAL_WORDS[goal] for goal in GOALS if energy or goal != "tokens-per-joule"},
        "assumed": bytes_text(assumed) if assumed else "",
        "devices": sorted({one.devices for one in candidates}),
        "precisions": list(dict.fromkeys(one.precision for one in candidates)),
        "works": list(dict.fromkeys(one.work for one in candidates)),
        "labels": list(dict.fromkeys(one.label for one in candidates)),
        "data": {
            "candidates": [_data(one) for one in candidates],
            "same": SAME_MEMORY,
            "within": WITHIN,
            "margin": MARGIN,
        },
    }


def _data(one: Candidate) -> dict[str, Any]:
    """A candidate for the script; texts short enough to stand in a table."""
    shown = vars(one) | {"speed": _pair(one.speed), "joules": _pair(one.joules)}
    reasons = ("barred", "unknown", "memory_unknown", "joules_unknown")
    return shown | {name: shorten(shown[name], _LONGEST) for name in reasons}


def _pair(interval: Interval | None) -> list[float | None] | None:
    """Value, half the width of its interval, and that for comparisons, both of the logarithm."""
    if interval is None:
        return None
    reach = interval.half if interval.reach is None else interval.reach
    return [interval.value, *(_known(each) for each in (interval.half, reach))]


def _known(number: float | None) -> float | None:
    """*number* to the digits that do not depend on the order in which linear algebra adds."""
    return number if number is None else float(f"{number:.12g}")


_LONGEST_REASON = 2000
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
    "reason": lambda row: row.reason[:_LONGEST_REASON],
    "trials": lambda row: row.trials,
    "failed_trials": lambda row: row.failed,
    "degraded_trials": lambda row: row.degraded_trials,
    "degraded": lambda row: row.degraded,
    "relative_to_ddp": lambda row: row.relative,
}


def document(
    info: RunInfo, cases: Sequence[CaseSummary], columns: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """The run as the page's script reads it: names once, numbers by place.

    A value is [what the tables show, lowest, highest, trials] over trials, null where there is none.
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
    return [estimate.value, estimate.low, estimate.high, estimate.n] if estimate else None
