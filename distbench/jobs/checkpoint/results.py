"""Results of checkpoint trials: verdicts, and each continuation as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.job_results import JobResults, Verdict
from distbench.jobs.checkpoint.verdict import evidence_by_case, resumed_trainings
from distbench.record import Record


@dataclass(frozen=True)
class CheckpointResults(JobResults):
    """Judge whether each case resumes as the same training."""

    def judge(self, settings: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Verdict]:
        return {case_id: resumption.verdict for case_id, resumption in evidence_by_case(records).items()}

    def run_json(self, records: Sequence[Record]) -> dict[str, Any]:
        return {"checkpoints": [continuation.to_json() for continuation in resumed_trainings(records)]}
