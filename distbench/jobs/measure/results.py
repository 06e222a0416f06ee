"""Curve of a measured trial: its losses, and its numbers at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.job_results import CurvePoint, JobResults
from distbench.analysis.losses.case_losses import mean_losses
from distbench.record import Record
from distbench.system.files import slug


@dataclass(frozen=True)
class MeasureResults(JobResults):
    """Give the losses of measured trials; numbers are summarised by ``analysis.case_summary``."""

    def curve(self, record: Record) -> tuple[str, Sequence[CurvePoint]]:

        if record.status != "measured":
            return "", ()
        losses = mean_losses(record)
        steps = {step: {"loss": loss} for step, loss in enumerate(losses, 1) if loss is not None}
        totals = {
            f"trial/{slug(name)}": value for name, value in record.values.items() if math.isfinite(value)
        }
        if totals:
            steps.setdefault(max(len(losses), 1), {}).update(totals)
        return f"trial {record.round}", [CurvePoint(step, steps[step]) for step in sorted(steps)]
