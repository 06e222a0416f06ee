"""Results of equivalence checks: verdicts, and expected losses of timed trials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.job_results import JobResults, ReferenceLosses, Verdict
from distbench.core.case import Case
from distbench.core.job import PlannedTrial
from distbench.jobs.equivalence import CheckSection
from distbench.jobs.equivalence.losses import expected_losses
from distbench.jobs.equivalence.verdict import confirmations, judge_cases
from distbench.record import Record


@dataclass(frozen=True)
class EquivalenceResults(JobResults):
    """Judge whether each case is the same training as its reference."""

    def judge(self, settings: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Verdict]:
        return judge_cases(records, settings.get("false_alarm", CheckSection.false_alarm))

    def follow_up_trials(
        self, section: CheckSection, cases: Sequence[Case], records: Sequence[Record]
    ) -> Iterable[PlannedTrial]:
        """Plan a second training of each case that differs from its reference."""
        return confirmations(records, section.false_alarm)

    def expected_losses(self, records: Sequence[Record]) -> dict[str, ReferenceLosses]:
        return expected_losses(records)
