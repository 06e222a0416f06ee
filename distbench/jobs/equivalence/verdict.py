"""Judge the records of equivalence checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from distbench.analysis.job_results import Gravity, Verdict
from distbench.analysis.losses.case_losses import DIFFERENT_BY_DESIGN
from distbench.core.grouping import group_by
from distbench.core.job import JobSpec, PlannedTrial
from distbench.jobs.equivalence import CONFIRMATION, CheckOptions, as_fp32
from distbench.jobs.equivalence.arms import (
    DIFFERS,
    EQUIVALENT,
    NOT_CHECKED,
    ROUNDING,
    EquivalenceArm,
    EquivalenceEvidence,
    difference_text,
)
from distbench.jobs.equivalence.judge import ReferenceJudge, arm_from_record
from distbench.record import NO_REFERENCE_TEXT, NOT_LAUNCHED_TEXT, Record, Status

# from the best to the worst: the worst arm decides
_GRAVITY: dict[str, Gravity] = {
    EQUIVALENT: "ok",
    ROUNDING: "ok",
    # as requested, which says nothing about how well it trains
    DIFFERENT_BY_DESIGN: "ok",
    NOT_CHECKED: "unknown",
    DIFFERS: "bad",
}

_OOM_STATUSES = (Status.OOM_GPU, Status.OOM_HOST)


def judge_cases(records: Sequence[Record], false_alarm: float) -> dict[str, Verdict]:
    """Judge each case that *records* of checks are about; return verdicts by case id.

    *false_alarm* is the probability that a correct case, over all of its arms, is reported as different.
    """
    court, again = _Judges(records), _confirmations_by_training(records)
    of_case = group_by(_own_trainings(records), lambda record: record.job.options.of)
    judged = {}
    for case_id, mine in of_case.items():
        arms = mine + _fp32_records(mine[0], of_case)
        judged[case_id] = [
            (record, court.judge_twice(record, again, case_id, false_alarm / len(arms))) for record in arms
        ]
    disproved = {
        record.job.options.reference
        for mine in judged.values()
        for record, arm in mine
        if arm.word in (EQUIVALENT, ROUNDING) and court.splits_batch(record)
    }
    return {
        case_id: _verdict(
            [
                court.without_disproved_cause(*pair) if _reference_id(pair[0]) in disproved else pair[1]
                for pair in mine
            ]
        )
        for case_id, mine in judged.items()
    }


def _fp32_records(first: Record, of_case: Mapping[str, list[Record]]) -> list[Record]:
    """Records of the same case in fp32, if the suite of a 16-bit case also has that one."""
    options: Any = first.job.options
    again = as_fp32(first.case)
    return of_case.get(options.also or again.id, []) if again else []


def _own_training_first(record: Record) -> tuple[bool, bool]:
    """Sort key: the suite's own training first."""
    return _is_fp32_repeat(record), record.case.optimizer.name == "sgd"


def _verdict(arms: list[EquivalenceArm]) -> Verdict:
    # an interrupted run may have no training that counts yet
    counted = [arm for arm in arms if arm.is_counted] or arms
    word = max((arm.word for arm in counted), key=list(_GRAVITY).index)
    evidence = EquivalenceEvidence(word, tuple(arms))
    if word == ROUNDING and (why := evidence.insensitivity):
        arms = [replace(arm, word=NOT_CHECKED, reason=why) if arm.word == ROUNDING else arm for arm in arms]
        return _verdict(arms)
    # on reduced work, the strategy may train none of the smaller tensors differently
    has_seen_design = not any(arm.design and arm.work for arm in counted)
    return Verdict(
        "equivalence",
        word,
        _GRAVITY[word],
        evidence.sentence(),
        evidence,
        invalidates=word == DIFFERS,
        confirms_quality=word in (EQUIVALENT, ROUNDING) and has_seen_design,
        remarks=evidence.remarks,
        extent=(evidence.limit_share, f"of the allowed deviation ({evidence.basis()})"),
    )


class _Judges:
    """Judges of all references; each training is judged by its own reference."""

    def __init__(self, records: Sequence[Record]) -> None:
        # by the id of the requested reference, which may have a fallback
        references = [record for record in records if record.job.provided_reference]
        self._judges = {
            r.job.provided_reference: ReferenceJudge(r) for r in references if r.status is Status.MEASURED
        }
        self._oom_references = {
            r.job.provided_reference for r in references if r.status in _OOM_STATUSES
        } - set(self._judges)

    def judge_arm(self, record: Record, case_id: str, false_alarm: float) -> EquivalenceArm:
        """Judge the training in *record* as an arm of the case *case_id*."""
        # a training that breaks down while its reference does not is not equivalent
        if record.status not in (Status.MEASURED, Status.INVALID_NAN):
            arm = self._unchecked_arm(
                record, is_fp32_repeat=record.job.options.of != case_id or _is_fp32_repeat(record)
            )
        elif judge := self._judges.get(_reference_id(record)):
            arm = judge.judge(record, false_alarm)
        else:
            arm = arm_from_record(record, NOT_CHECKED, reason=NO_REFERENCE_TEXT)
        options: Any = record.job.options
        is_asked = case_id in (record.case.id, options.asked)
        return replace(arm, is_asked=is_asked, work=options.work)

    def judge_twice(
        self, record: Record, again: Mapping[tuple[str, str], Record], case_id: str, false_alarm: float
    ) -> EquivalenceArm:
        """Judge the training in *record*, and one that differs by its confirmation in *again*, too.

        Of honest trainings, some show rare events that none of the perturbed ones has. A mistake is in every
        training of the case.
        """
        arm = self.judge_arm(record, case_id, false_alarm)
        second = again.get(_training_id(record)) if _may_be_rare(arm) else None
        if second is None or self.judge_arm(second, case_id, false_alarm).word not in (EQUIVALENT, ROUNDING):
            return arm
        reason = (
            f"one training of the case {difference_text(arm, arm.optimizer)}; a second one, from weights "
            "perturbed by rounding, does not differ: check it with other seeds"
        )
        return replace(arm, word=NOT_CHECKED, reason=reason)

    def splits_batch(self, record: Record) -> bool:
        """True if the training in *record* computes a global batch in smaller parts than its reference."""
        judge = self._judges[_reference_id(record)]
        return record.case.batch.micro_batch_size < judge.case.batch.micro_batch_size

    def _unchecked_arm(self, record: Record, *, is_fp32_repeat: bool) -> EquivalenceArm:
        """Arm of a training without a result; *is_fp32_repeat*: in fp32, which the suite did not request."""
        if record.status is Status.UNSUPPORTED:
            waited = record.reason.startswith((NO_REFERENCE_TEXT, NOT_LAUNCHED_TEXT))
            too_large = is_fp32_repeat and _reference_id(record) in self._oom_references
            return arm_from_record(
                record, NOT_CHECKED, reason=record.reason, can_run=waited and not too_large
            )
        # if the longer dtype does not fit, it can't run here
        can_run = not (is_fp32_repeat and record.status in _OOM_STATUSES)
        return arm_from_record(
            record, NOT_CHECKED, reason=f"{record.status}: {record.reason}", can_run=can_run
        )

    def without_disproved_cause(self, record: Record, arm: EquivalenceArm) -> EquivalenceArm:
        """Drop a cause from *arm* that a training with split batches disproves."""
        if not arm.cause:
            return arm
        cause = self._judges[_reference_id(record)].cause(disproved=True)
        return replace(arm, cause=cause, advice="")


def confirmations(records: Sequence[Record], false_alarm: float) -> Iterator[PlannedTrial]:
    """Yield a second training of each case in *records*, all of a run, that differs from its reference.

    Of several trainings that differ, the first that no second one has confirmed: one is enough.
    """
    records = [record for record in records if isinstance(record.job.options, CheckOptions)]
    court, again = _Judges(records), _confirmations_by_training(records)
    for case_id, mine in group_by(_own_trainings(records), lambda record: record.job.options.of).items():
        arms = ((record, court.judge_twice(record, again, case_id, false_alarm)) for record in mine)
        first = next((pair for pair in arms if pair[1].word == DIFFERS), None)
        if first and _may_be_rare(first[1]) and _training_id(first[0]) not in again:
            record = first[0]
            options = replace(record.job.options_as(CheckOptions), role=CONFIRMATION)
            yield PlannedTrial(record.case, record.round + 1, JobSpec(record.job.kind, options))


def _own_trainings(records: Sequence[Record]) -> list[Record]:
    """Records of trainings of cases, each suite's own before its repeats in fp32 and with SGD."""
    return sorted(
        (record for record in records if record.job.options.role == "case"), key=_own_training_first
    )


def _confirmations_by_training(records: Sequence[Record]) -> dict[tuple[str, str], Record]:
    return {_training_id(record): record for record in records if record.job.options.role == CONFIRMATION}


def _may_be_rare(arm: EquivalenceArm) -> bool:
    """True if *arm* differs by numbers alone, which chance may have made."""
    return arm.word == DIFFERS and not (arm.design or arm.drift or arm.first is None or arm.first.flaw)


def _training_id(record: Record) -> tuple[str, str]:
    """Id of the trained case and of its reference."""
    return record.case_id, _reference_id(record)


def _reference_id(record: Record) -> str:
    options: Any = record.job.options
    return str(options.reference)


def _is_fp32_repeat(record: Record) -> bool:
    """True if *record* is the fp32 repeat of a 16-bit case."""
    options: Any = record.job.options
    return bool(options.precision)
