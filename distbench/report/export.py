"""The numbers of all cases as the page gives them out, as CSV and as JSON, made from one block of data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distbench.analysis.summary import CaseSummary
from distbench.store import RunInfo

FACTS = (
    "case",
    "case_id",
    "strategy",
    "label",
    "world_size",
    "global_batch_size",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "precision",
    "status",
    "verdict",
    "reason",
    "trials",
    "failed_trials",
    "degraded_trials",
    "degraded",
    "relative_to_ddp",
)
_LONGEST_REASON = 2000


def document(
    info: RunInfo, cases: Sequence[CaseSummary], columns: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return the run as the page's script reads it: names once, numbers by place.

    A value is [median, lowest, highest, trials] over trials, null where there is none.
    """
    return {
        "run_id": info.run_id,
        "suite": info.suite_name,
        "facts": FACTS,
        "columns": [{"name": name, **_described(column)} for name, column in columns.items()],
        "cases": [[_facts(row), [_value(row, name) for name in columns]] for row in cases],
    }


def _described(column: dict[str, Any]) -> dict[str, Any]:
    return {key: column[key] for key in ("unit", "better", "over_ranks", "doc")}


def _facts(row: CaseSummary) -> list[Any]:
    case, batch = row.case, row.case.batch
    return [
        case.name,
        case.id,
        case.strategy.name,
        case.label,
        case.world_size,
        batch.global_batch_size,
        batch.micro_batch_size,
        batch.gradient_accumulation_steps,
        case.precision.compute,
        row.status,
        row.verdict.word if row.verdict else None,
        row.reason[:_LONGEST_REASON],
        row.trials,
        row.failed,
        row.degraded_trials,
        row.degraded,
        row.relative,
    ]


def _value(row: CaseSummary, name: str) -> list[float] | None:
    found = row.values.get(name)
    return None if found is None else [found.value, found.low, found.high, found.n]
