"""Results of a probe: its rates for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.job_results import JobResults
from distbench.prediction.probed_rates import RATES_TABLE
from distbench.record import Record


@dataclass(frozen=True)
class ProbeResults(JobResults):
    """Give the rates of a machine; they judge nothing."""

    def run_json(self, records: Sequence[Record]) -> dict[str, Any]:
        """The rates of each probe, with the ids of the cases that they are about."""
        return {"rates": [_probe_json(record) for record in records]}


def _probe_json(record: Record) -> dict[str, Any]:
    return {
        "case": record.case.name,
        "case_id": record.case_id,
        "world_size": record.case.world_size,
        "status": str(record.status),
        "reason": record.reason,
        "cases": list(getattr(record.job.options, "cases", ())),
        "rates": [dict(row) for row in record.tables.get(RATES_TABLE, [])],
    }
