"""Expected losses of timed trials, from the reference of the equivalence check."""

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

# multiple of the largest distance so far of the reference's perturbed trainings: one more reached 2.5 at
# most, and the timed pass uses other kernels, which round in other places and more often
# (docs/equivalence.md)
_LOSS_MARGIN = 5.0
# a loss is at most an fp32 number, a sum over the whole batch
_RESOLUTION = 8 * float(np.finfo(np.float32).eps)


def expected_losses(records: Sequence[Record]) -> dict[str, ReferenceLosses]:
    """Losses of the reference of each case by its id, with the deviation that rounding may cause.

    A deviation may be a multiple of the largest one of any perturbed training of the reference up to that
    step. Only the training with the case's own optimizer is the one that is timed.
    """
    references = {
        record.job.provided_reference: record
        for record in records
        # timed trials use the dropout that a check disables
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
    """True if the reference in *record* is wrong, so no timed trial has to match it."""
    # only 16-bit references can be judged wrong, and building a judge takes time
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
    spread = np.max([np.abs(curve - reference) for curve in perturbed], axis=0)
    allowed = _LOSS_MARGIN * np.maximum.accumulate(np.maximum(spread, _RESOLUTION * np.abs(reference)))
    # if one of them broke down, the effect of rounding is unknown
    known = np.where(np.isfinite(allowed), reference, np.nan)
    return ReferenceLosses(f"the check's {record.case.name}", known, allowed)
