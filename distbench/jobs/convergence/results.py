"""Results of trainings to a target: verdicts and curves."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.job_results import CurvePoint, JobResults, Verdict
from distbench.jobs.convergence import ConvergeOptions
from distbench.jobs.convergence.verdict import evidence_by_case
from distbench.record import Record
from distbench.system.files import slug


@dataclass(frozen=True)
class ConvergenceResults(JobResults):
    """Judge whether each case converges like its reference, and give its curves."""

    def judge(self, settings: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Verdict]:
        return {case_id: convergence.verdict for case_id, convergence in evidence_by_case(records).items()}

    def curve(self, record: Record) -> tuple[str, Sequence[CurvePoint]]:

        merit = f"evaluation/{slug(str(record.job.options_as(ConvergeOptions).merit.get('name', 'value')))}"
        names = {"value": merit} | {key: key for key in ("loss", "grad_norm", "samples", "tokens", "seconds")}
        began = _epoch(record.started)
        return f"seed {record.case.seed}", [
            CurvePoint(
                row["step"],
                {name: row[key] for key, name in names.items() if row.get(key) is not None},
                None if began is None else began + row["seconds"],
            )
            for row in record.tables.get("converge_curve", ())
        ]


def _epoch(started: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(started).timestamp()
    except ValueError:
        return None
