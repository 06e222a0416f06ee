"""Whether collectives gave the right results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.collectives import Missing, Result, missing, results
from distbench.analysis.job_results import Verdict
from distbench.core.grouping import grouped
from distbench.core.text import listed, one_line
from distbench.core.units import count_text
from distbench.record import Record, Status

LINKS = "links"
"""Kind of these verdicts."""


def verdicts(records: Sequence[Record]) -> dict[str, Verdict]:
    """Whether every collective gave the right result, by id of each case on as many devices."""
    by_case: dict[str, Verdict] = {}
    for same in grouped(records, lambda record: record.case_id).values():
        if verdict := _verdict(same):
            ids = (id_ for record in same for id_ in getattr(record.job.options, "cases", ()))
            by_case |= dict.fromkeys(ids, verdict)
    return by_case


def _verdict(records: Sequence[Record]) -> Verdict | None:
    """Verdict on the collectives on one number of devices; None: nobody asked for a check."""
    failed = [record for record in records if record.status is not Status.MEASURED]
    made = results(records)
    wrong = [result for result in made if result.wrong]
    on = f"on {count_text(records[0].case.world_size, 'device')}"
    evidence = Evidence(made, tuple(missing(records)))
    if wrong:
        which = listed([f"{result.key} ({result.wrong:,} elements)" for result in wrong], most=3)
        return Verdict(LINKS, "wrong", "bad", f"wrong results {on}: {which}", evidence)
    if not made:
        why = one_line(failed[0].reason) if failed else "nothing was measured"
        return Verdict(LINKS, "not measured", "unknown", f"not measured {on}: {why}", evidence)
    if any(result.wrong is None for result in made):
        return None
    return Verdict(LINKS, "correct", "ok", f"all {len(made)} measured collectives {on} are correct", evidence)


@dataclass(frozen=True)
class Evidence:
    """What a verdict on collectives rests on."""

    results: Sequence[Result]
    missing: Sequence[Missing]

    def to_json(self) -> dict[str, Any]:
        """Each measurement with its interval, and what could not be measured."""
        return {
            "results": [
                {**result.key._asdict(), "busbw": result.busbw.to_json(), "wrong": result.wrong}
                for result in self.results
            ],
            "missing": [vars(each) for each in self.missing],
        }
