"""Results of equivalence checks: verdicts, and expected losses of timed trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.job_results import JobResults, ReferenceLosses, Verdict
from distbench.jobs.equivalence import CheckSection
from distbench.jobs.equivalence.losses import expected_losses
from distbench.jobs.equivalence.verdict import judge_cases
from distbench.record import Record


@dataclass(frozen=True)
class EquivalenceResults(JobResults):
    """Judge whether each case is the same training as its reference."""

    def judge(self, settings: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Verdict]:
        return judge_cases(records, settings.get("false_alarm", CheckSection.false_alarm))

    def expected_losses(self, records: Sequence[Record]) -> dict[str, ReferenceLosses]:
        return expected_losses(records)
