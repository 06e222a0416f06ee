"""Caveats of an exported configuration, from the measurement of the case."""

from __future__ import annotations

from distbench.adopt.base import applicable
from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.core.text import one_line


def export_caveats(row: CaseSummary, run: RunAnalysis) -> list[str]:
    """Warnings about exporting a case of *run*, without its name."""
    failed = f"{row.failed} of {row.trials + row.failed} trials failed: {one_line(row.reason)}"
    known = {
        "not equivalent to its reference (--force)": row.differs,
        f"checked, but not measured ({one_line(row.reason)})": not row.measured,
        f"measured only on a noisy machine: {one_line(row.degraded)}": row.degraded,
        failed: row.measured and row.failed,
    }
    return [*applicable(known), *_work_differences(row, run)]


def _work_differences(row: CaseSummary, run: RunAnalysis) -> list[str]:
    """Known or possible differences in work between the live engine and its reference."""
    return [
        f"not {'' if finding.is_known else 'known to be '}the same work as its reference: "
        f"{one_line(str(finding))}"
        for finding in run.parity.findings.get(row.case.id, [])
    ]
