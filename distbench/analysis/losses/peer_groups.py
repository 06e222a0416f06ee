"""Compare the losses of all timed cases with references and with each other.

A check looks at every step, which may hide the mistake that it looks for: it waits for a gathered parameter,
for example. The timed trials train the same batches from the same weights undisturbed, so their losses are
evidence at no cost. They are compared with

1. a training that another kind of job vouches for (``JobResults.expected_losses``): the reference of the
   equivalence check, as far as it trained, with the rounding deviation observed there;
2. over all steps, the ``single`` cases of the same work, one process without a wrapper; without one, the
   result that most cases of the same work agree on. Rounding is then bounded by ``rounding_bounds``, and by
   the deviation observed for the same training if that was measured (``JobResults.perturbed_losses``).

A case that differs by design is no reference, but is compared with the others.

Cases of the same work differ only in how it is divided and kept (``TUNABLE_FIELDS`` and the number of
devices).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from distbench.analysis.job_results import ReferenceLosses
from distbench.analysis.losses.case_losses import (
    CASES_DISAGREE,
    NOT_COMPARABLE,
    NOT_COMPARED,
    SAME_LOSSES,
    CaseLosses,
    LossComparison,
)
from distbench.core.case import TUNABLE_FIELDS
from distbench.core.grouping import group_by
from distbench.record import Record, Status
from distbench.strategies.base import REFERENCE_STRATEGY

_DRAWS_RANDOM_NUMBERS = (
    "the model draws random numbers during training (such as dropout), and the division of rows "
    "among ranks decides which row gets which of them"
)
_LOSS_MAY_NOT_BE_MEAN = (
    "either the loss of a batch is not the mean over its parts (masked tokens, batch norm), or the "
    "training is wrong; run --check"
)


def compare_timed_losses(
    records: Sequence[Record],
    expected: Mapping[str, ReferenceLosses],
    perturbed: Mapping[str, Sequence[np.ndarray]] = MappingProxyType({}),
) -> dict[str, LossComparison]:
    """Compare the losses of measured trials, by case id; cases without a reference are left out.

    *expected* are the trusted trainings by case id; *perturbed* the losses (steps,) of trainings of a case
    from weights perturbed by rounding.
    """
    measured = [record for record in records if record.status is Status.MEASURED]
    by_case = group_by(measured, lambda record: record.case_id)
    cases = [CaseLosses(mine, perturbed.get(case_id, ())) for case_id, mine in by_case.items()]
    found: dict[str, LossComparison] = {}
    for peers in group_by(cases, _training_key).values():
        found |= _compare_group(peers, expected)
    return found


def _training_key(timed: CaseLosses) -> Hashable:
    """Key that is equal for cases of the same training."""
    case = timed.case
    return case.work_key(
        (*TUNABLE_FIELDS, "world_size")
    ), timed.batch_parts if case.depends_on_batch_division else 0


def _compare_group(
    peers: Sequence[CaseLosses], expected: Mapping[str, ReferenceLosses]
) -> dict[str, LossComparison]:
    """Compare the cases of one work with trusted references, and those that agree with each other."""
    # if only some cases draw random numbers, or the reference draws none, it is not the model that draws
    if all(timed.draws_random_numbers for timed in peers) and not any(
        timed.case.id in expected for timed in peers
    ):
        return {timed.case.id: LossComparison(NOT_COMPARABLE, _DRAWS_RANDOM_NUMBERS) for timed in peers}
    found: dict[str, LossComparison] = {}
    known = [timed for timed in peers if timed.curves]
    vouched = {
        timed.case.id: timed.compare_with(expected[timed.case.id])
        for timed in known
        if timed.case.id in expected
    }
    others = [
        timed for timed in known if timed.case.id not in vouched or not vouched[timed.case.id].is_different
    ]
    among = _compare_with_each_other([timed for timed in others if not timed.design])
    among |= _compare_designed([timed for timed in others if timed.design], others)
    for timed in known:
        own, theirs = vouched.get(timed.case.id), among.get(timed.case.id)
        # cases that differ from their trusted reference are not among the others
        if theirs and (own is None or own.word == NOT_COMPARED or theirs.is_different):
            found[timed.case.id] = theirs
        elif own:
            found[timed.case.id] = own
    remark = "" if vouched else _batch_parts_remark(known)
    return {
        id_: replace(one, remark=remark) if one.word == SAME_LOSSES else one for id_, one in found.items()
    }


def _batch_parts_remark(cases: Sequence[CaseLosses]) -> str:
    """Limitation of the losses of *cases* if all divide the batch alike; empty if there is none.

    The losses of workloads that come with distbench are means over the parts.
    """
    parts, losses = {timed.batch_parts for timed in cases}, cases[0].case.workload.options if cases else {}
    if len(parts) > 1 or 1 in parts or not losses.get("loss_function") or losses.get("count_function"):
        return ""
    return (
        f"All cases divide the batch into {max(parts)} parts, so their losses can't show whether "
        "the loss of a batch is the mean over its parts. It is not if the parts have unequal "
        "numbers of labels; run --check"
    )


def _compare_with_each_other(cases: Sequence[CaseLosses]) -> dict[str, LossComparison]:
    """Compare *cases* of the same work only with each other."""
    reference = _single_process_reference(cases) or _majority_reference(cases)
    if reference is None:
        return _without_majority(cases)
    found = {timed.case.id: timed.compare_with(reference) for timed in cases}
    agreed = {timed.batch_parts for timed in cases if found[timed.case.id].word == SAME_LOSSES}
    return found | _explained_by_batch_parts(
        [timed for timed in cases if timed.batch_parts not in agreed], found, reference
    )


def _compare_designed(cases: Sequence[CaseLosses], others: Sequence[CaseLosses]) -> dict[str, LossComparison]:
    """Compare *cases* that differ by design with those of *others* that don't."""
    if not cases:
        return {}
    same = [timed for timed in others if not timed.design]
    alone = same[0].as_reference if len(same) == 1 else None
    reference = _single_process_reference(same) or _majority_reference(same) or alone
    return {timed.case.id: timed.compare_with(reference) for timed in cases} if reference else {}


def _single_process_reference(cases: Sequence[CaseLosses]) -> ReferenceLosses | None:
    """Reference from a plain process, if its trials agree."""
    for timed in cases:
        if timed.case.strategy.name == REFERENCE_STRATEGY:
            return None if timed.compare_with(timed.as_reference).is_different else timed.as_reference
    return None


def _majority_reference(cases: Sequence[CaseLosses]) -> ReferenceLosses | None:
    """Reference on which all trials of more than half of *cases* agree; None without such a majority."""
    best, most = None, 0
    for way in (timed.as_reference for timed in cases):
        support = sum(timed.compare_with(way).word == SAME_LOSSES for timed in cases)
        if support > most:
            best, most = way, support
        if most == len(cases):
            # the usual end: no other can have more, and each look costs a comparison with all
            break
    if best is None or most < 2 or 2 * most <= len(cases):
        return None
    return replace(best, name=f"most of the {len(cases)} cases of the same work")


def _explained_by_batch_parts(
    cases: Sequence[CaseLosses], found: Mapping[str, LossComparison], reference: ReferenceLosses
) -> dict[str, LossComparison]:
    """Cases that divide the batch alike and agree with each other, but not with *reference*.

    If that shows before the first update, and for several strategies, a loss that is not the mean over
    parts of the batch explains it as well as a mistake that all of them share.
    """
    explained: dict[str, LossComparison] = {}
    for alike in group_by(cases, lambda timed: timed.batch_parts).values():
        early = [
            timed for timed in alike if (worst := found[timed.case.id].largest_deviation) and worst.step == 0
        ]
        way = _majority_reference(early)
        agreeing = [timed for timed in early if way and timed.compare_with(way).word == SAME_LOSSES]
        if len({timed.case.strategy.name for timed in agreeing}) > 1:
            reason = f"{len(agreeing)} cases that divide the batch alike agree, but not with {reference.name}"
            explained |= {
                timed.case.id: LossComparison(NOT_COMPARED, f"{reason}: {_LOSS_MAY_NOT_BE_MEAN}")
                for timed in agreeing
            }
    return explained


def _without_majority(cases: Sequence[CaseLosses]) -> dict[str, LossComparison]:
    """Compare *cases* without a majority: only those that divide the batch alike surely disagree."""
    found: dict[str, LossComparison] = {}
    for timed in cases:
        against = [
            (other, timed.compare_with(other.as_reference))
            for other in cases
            # a single case is compared with its own trials
            if other is not timed or len(cases) == 1
        ]
        different = [(other, one) for other, one in against if one.is_different]
        sure = [
            one
            for other, one in different
            if other.batch_parts == timed.batch_parts
            or (one.largest_deviation and one.largest_deviation.step > 0)
        ]
        if sure:
            found[timed.case.id] = replace(sure[0], word=CASES_DISAGREE)
        elif different:
            other, _ = different[0]
            found[timed.case.id] = LossComparison(
                NOT_COMPARED, f"not as {other.case.name}: {_LOSS_MAY_NOT_BE_MEAN}"
            )
        elif len(cases) > 1:
            found[timed.case.id] = next((one for _, one in against if one.word != SAME_LOSSES), against[0][1])
    return found
