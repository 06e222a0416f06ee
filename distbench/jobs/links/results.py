"""Results of collectives: verdicts, and the comparison of two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.job_results import JobResults, Verdict
from distbench.jobs.links.comparison import comparison_sheet
from distbench.jobs.links.verdict import judge_cases
from distbench.record import Record
from distbench.tables.table import Table


@dataclass(frozen=True)
class CollectiveResults(JobResults):
    """Judge the bandwidths of collectives, and compare those of two runs."""

    def judge(self, settings: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Verdict]:
        return judge_cases(records)

    def comparison(self, before: Sequence[Record], after: Sequence[Record]) -> Table:
        return comparison_sheet(before, after)
