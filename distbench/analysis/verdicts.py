"""Verdicts on the cases of a run: those of each kind of job, and one on the timed losses.

Timed losses are judged here because they are compared with the references of the kinds of job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from distbench.analysis.job_results import Gravity, ReferenceLosses, Verdict, job_results
from distbench.analysis.losses.case_losses import DIFFERENT_BY_DESIGN, SAME_LOSSES, LossComparison
from distbench.analysis.losses.peer_groups import compare_timed_losses
from distbench.core.job import MEASURE, JobKind
from distbench.core.text import one_line
from distbench.record import Record, records_of_kind
from distbench.record.record_reader import untrusted_records

if TYPE_CHECKING:
    import numpy as np


LOSS_VERDICT = "losses"
"""Kind of the verdicts on timed losses, which need no request and no plug-in."""


def is_confirmed(verdicts: Mapping[str, Verdict]) -> bool:
    """True if *verdicts* on a case, by kind, show that it trains as well as its reference.

    A bad verdict always refutes that. If timed steps deviated from their reference, a check covered too
    little, and only verdicts by outcome count.
    """
    if any(verdict.gravity == "bad" for verdict in verdicts.values()):
        return False
    timed = verdicts.get(LOSS_VERDICT)
    has_parted = timed is not None and timed.word == DIFFERENT_BY_DESIGN
    return any(
        each.confirms_quality and (each.confirms_by_outcome or not has_parted) for each in verdicts.values()
    )


def collect_verdicts(suite: Mapping[str, Any], records: Sequence[Record]) -> dict[str, dict[str, Verdict]]:
    """Verdicts by case id, then by kind, of the *records* of a run of the resolved *suite*.

    Raises:
        RecordError: the records of a kind of job do not fit together.
    """
    by_case: dict[str, dict[str, Verdict]] = {}
    for plugin, results in job_results().items():
        kind = results.kind
        if own := records_of_kind(records, kind.name):
            with _named_records(kind, own):
                judged = results.judge(suite.get(kind.name) or {}, own)
            for case_id, verdict in judged.items():
                by_case.setdefault(case_id, {})[plugin] = verdict
    for case_id, found in loss_comparisons(records).items():
        by_case.setdefault(case_id, {})[LOSS_VERDICT] = _loss_verdict(found)
    return by_case


def loss_comparisons(records: Sequence[Record]) -> dict[str, LossComparison]:
    """Compare the losses of the timed trials among *records*, by case id, using all kinds' references.

    Raises:
        RecordError: the records of a kind of job do not fit together.
    """
    expected: dict[str, ReferenceLosses] = {}
    for results in job_results().values():
        if own := records_of_kind(records, results.kind.name):
            with _named_records(results.kind, own):
                expected |= results.expected_losses(own)
    return compare_timed_losses(records_of_kind(records, MEASURE), expected, perturbed_losses(records))


def perturbed_losses(records: Sequence[Record]) -> dict[str, Sequence[np.ndarray]]:
    """Losses (steps,) of trainings from weights perturbed by rounding, by case id, from all kinds.

    Raises:
        RecordError: the records of a kind of job do not fit together.
    """
    perturbed: dict[str, Sequence[np.ndarray]] = {}
    for results in job_results().values():
        if own := records_of_kind(records, results.kind.name):
            with _named_records(results.kind, own):
                perturbed |= results.perturbed_losses(own)
    return perturbed


def _named_records(kind: JobKind, records: Sequence[Record]) -> AbstractContextManager[None]:
    """Name *records* of *kind*, and their run, in an error that the body raises on them."""
    return untrusted_records(f"the records in {kind.folder} of run {one_line(records[0].run_id)}")


def _loss_verdict(found: LossComparison) -> Verdict:
    gravity: Gravity = (
        "bad"
        if found.is_different
        else "ok"
        if found.word in (SAME_LOSSES, DIFFERENT_BY_DESIGN)
        else "unknown"
    )
    extent = (found.limit_share, "of the allowed deviation")
    remarks = (found.remark,) if found.remark else ()
    sentence, voids = found.sentence(), found.is_different
    return Verdict(
        LOSS_VERDICT, found.word, gravity, sentence, found, invalidates=voids, extent=extent, remarks=remarks
    )
