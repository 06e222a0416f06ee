"""Judge the results of collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.collectives import (
    CollectiveResult,
    UnmeasuredCollective,
    collective_results,
    unmeasured_collectives,
)
from distbench.analysis.job_results import Verdict
from distbench.core.grouping import group_by
from distbench.core.text import join_limited, one_line
from distbench.core.units import format_count
from distbench.record import Record, Status

VERDICT_KIND = "links"
"""Kind of these verdicts."""


def judge_cases(records: Sequence[Record]) -> dict[str, Verdict]:
    """Judge the results of all collectives; return verdicts by id of each case on as many devices."""
    by_case: dict[str, Verdict] = {}
    for same in group_by(records, lambda record: record.case_id).values():
        if verdict := _verdict(same):
            ids = (id_ for record in same for id_ in getattr(record.job.options, "cases", ()))
            by_case |= dict.fromkeys(ids, verdict)
    return by_case


def _verdict(records: Sequence[Record]) -> Verdict | None:
    """Verdict on the collectives on one number of devices; None: no check was requested."""
    failed = [record for record in records if record.status is not Status.MEASURED]
    made = collective_results(records)
    wrong = [result for result in made if result.wrong_elements]
    on = f"on {format_count(records[0].case.world_size, 'device')}"
    evidence = CollectivesEvidence(made, tuple(unmeasured_collectives(records)))
    if wrong:
        which = join_limited(
            [f"{result.key} ({result.wrong_elements:,} elements)" for result in wrong], limit=3
        )
        return Verdict(VERDICT_KIND, "wrong", "bad", f"wrong results {on}: {which}", evidence)
    if not made:
        why = one_line(failed[0].reason) if failed else "nothing was measured"
        return Verdict(VERDICT_KIND, "not measured", "unknown", f"not measured {on}: {why}", evidence)
    if any(result.wrong_elements is None for result in made):
        return None
    return Verdict(
        VERDICT_KIND, "correct", "ok", f"all {len(made)} measured collectives {on} are correct", evidence
    )


@dataclass(frozen=True)
class CollectivesEvidence:
    """Evidence of a verdict on collectives."""

    results: Sequence[CollectiveResult]
    missing: Sequence[UnmeasuredCollective]

    def to_json(self) -> dict[str, Any]:
        """Measurements with their intervals, and what could not be measured."""
        return {
            "results": [
                {**result.key._asdict(), "busbw": result.busbw.to_json(), "wrong": result.wrong_elements}
                for result in self.results
            ],
            "missing": [vars(each) for each in self.missing],
        }
