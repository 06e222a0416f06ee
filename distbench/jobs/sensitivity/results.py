"""Losses of trainings from perturbed weights, and cases that need such trainings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from distbench.analysis.job_results import JobResults
from distbench.analysis.verdicts import loss_comparisons
from distbench.core.case import Case
from distbench.core.grouping import group_pairs
from distbench.core.job import PlannedTrial
from distbench.jobs.sensitivity import SensitivitySection
from distbench.record import Record, Status


@dataclass(frozen=True)
class SensitivityResults(JobResults):
    """Give the losses of trainings from weights perturbed by rounding."""

    def follow_up_trials(
        self, section: SensitivitySection, cases: Sequence[Case], records: Sequence[Record]
    ) -> Iterable[PlannedTrial]:
        """Plan perturbed trainings of *cases* from whose losses others differ by more than usual rounding."""
        doubted = {found.reference for found in loss_comparisons(records).values() if found.is_different}
        return self.kind.perturbed_trials(section, [case for case in cases if case.id in doubted])

    def perturbed_losses(self, records: Sequence[Record]) -> dict[str, Sequence[np.ndarray]]:
        return {
            record.case_id: [np.array(losses, dtype=np.float64) for losses in curves.values()]
            for record in records
            if record.status is Status.MEASURED
            and (
                curves := group_pairs(
                    (row["training"], row["loss"])
                    for row in sorted(record.tables.get("sensitivity_curve", []), key=lambda row: row["step"])
                )
            )
        }
