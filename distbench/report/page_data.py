"""What the scripts of the page read, as plain data: the candidates to choose among, and all numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.answer import Answer, answer
from distbench.analysis.choice import GOALS, SAME_MEMORY, WITHIN, Candidate, Wish, settle
from distbench.analysis.noise import Interval
from distbench.analysis.run import AnalysedRun
from distbench.analysis.summary import CaseSummary
from distbench.analysis.text import shorten
from distbench.record.store import RunInfo

_GOAL_WORDS = {
    "throughput": "fastest that fits",
    "memory": "lowest memory near the fastest",
    "tokens-per-joule": "least energy per token",
}
_LONGEST = 160


@dataclass(frozen=True)
class Picker:
    """The answer as it stands when the page opens, and what its fields offer."""

    answer: Answer
    goals: dict[str, str]
    """Goal -> what a reader calls it."""
    devices: list[int]
    precisions: list[str]
    works: list[str]
    labels: list[str]
    """Of the strategies, in the order of the suite."""
    wish: Wish
    """What is asked for when the page opens."""
    data: dict[str, Any]
    """For the script of the page."""


def picker(run: AnalysedRun) -> Picker:
    """The picker of *run*."""
    every = run.candidates
    energy = any(one.joules for one in every)
    return Picker(
        answer=answer(run),
        goals={goal: _GOAL_WORDS[goal] for goal in GOALS if energy or goal != "tokens-per-joule"},
        devices=sorted({one.devices for one in every}),
        precisions=_once([one.precision for one in every]),
        works=_once([one.work for one in every]),
        labels=_once([one.label for one in every]),
        wish=settle(every, Wish()),
        data={"candidates": [_data(one) for one in every], "same": SAME_MEMORY, "within": WITHIN},
    )


def _once(words: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(words))


def _data(one: Candidate) -> dict[str, Any]:
    """A candidate for the script; texts short enough to stand in a table."""
    plain = {
        field.name: getattr(one, field.name)
        for field in dataclasses.fields(one)
        if field.name not in ("speed", "joules")
    }
    for name in ("barred", "unknown", "memory_unknown", "joules_unknown"):
        plain[name] = shorten(plain[name], _LONGEST)
    return {**plain, "speed": _pair(one.speed), "joules": _pair(one.joules)}


def _pair(interval: Interval | None) -> list[float | None] | None:
    return None if interval is None else [interval.value, interval.half]


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
_VERDICT = "equivalence"
"""Kind of the column ``verdict``."""


def document(
    info: RunInfo, cases: Sequence[CaseSummary], columns: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """The run as the page's script reads it: names once, numbers by place.

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
        row.verdicts[_VERDICT].word if _VERDICT in row.verdicts else None,
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
