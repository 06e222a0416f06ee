"""What the reference of a check says about the losses of the timed trials, which train the same batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distbench.analysis.job_results import ReferenceLosses
from distbench.core.grouping import group_pairs
from distbench.ipc.trial_files import NO_DROPOUT_KEY
from distbench.jobs.equivalence import CheckSection
from distbench.jobs.equivalence.envelope import EPSILON
from distbench.jobs.equivalence.judge import ReferenceJudge
from distbench.record import Record, Status

# of the largest distance so far of the reference's perturbed trainings: one more of them came to 2.5 at most,
# and the timed pass takes other kernels, which round elsewhere and more often (docs/equivalence.md)
_LOSS_MARGIN = 5.0
# a loss is an fp32 number at most, of a sum as long as the batch
_RESOLUTION = 8 * float(np.finfo(np.float32).eps)


def expected_losses(records: Sequence[Record]) -> dict[str, ReferenceLosses]:
    """Losses of the reference of each case by its id, with how far rounding may lead from them.

    A deviation is allowed up to a multiple of the largest that any perturbed training of the reference has
    had up to that step. Only the training with the case's own optimizer is the one that is timed.
    """
    references = {
        record.job.provided_reference: record
        for record in records
        # timed trials train with the dropout that a check leaves out
        if record.job.provided_reference
        and record.status is Status.MEASURED
        and NO_DROPOUT_KEY not in record.environment
    }
    curves = {
        provided: _reference_losses(record)
        for provided, record in references.items()
        if not _is_reference_broken(record)
    }
    own = [
        record
        for record in records
        if record.job.options.role == "case" and record.case_id == record.job.options.of
    ]
    return {
        record.case_id: curves[record.job.options.reference]
        for record in own
        if record.job.options.reference in curves
    }


def _is_reference_broken(record: Record) -> bool:
    """Whether the reference in *record* is one that no timed trial need be like."""
    # of another dtype nobody says so, and a judge takes its time
    return record.case.precision.compute in EPSILON and bool(
        ReferenceJudge(record).problem(CheckSection.false_alarm)
    )


def _reference_losses(record: Record) -> ReferenceLosses:
    rows = record.tables.get("check_curve", [])
    ordered = sorted(rows, key=lambda row: row["step"])
    curves = {
        name: np.array(losses, dtype=np.float64)
        for name, losses in group_pairs((row["training"], row["loss"]) for row in ordered).items()
    }
    reference = curves["reference"]
    perturbed = [curve for name, curve in curves.items() if name.startswith("perturbed ")]
    apart = np.max([np.abs(curve - reference) for curve in perturbed], axis=0)
    allowed = _LOSS_MARGIN * np.maximum.accumulate(np.maximum(apart, _RESOLUTION * np.abs(reference)))
    # where one of them broke down, nobody knows how far rounding leads
    known = np.where(np.isfinite(allowed), reference, np.nan)
    return ReferenceLosses(f"the check's {record.case.name}", known, allowed)
