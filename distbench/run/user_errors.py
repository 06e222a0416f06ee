"""Errors of the user's own code that further trials could only repeat."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from distbench.core.case import Case
from distbench.core.job import MEASURE, job_kind
from distbench.plan import PlannedTrial
from distbench.record import NOT_LAUNCHED, Failure, Record, Status
from distbench.strategies.base import SINGLE

_WHOLE = (SINGLE, "dp", "ddp")
"""Strategies under which the module keeps whole parameters, and casts alike where it computes in 16 bits."""
_IRRELEVANT = ("strategy", "world_size", "batch", "optimizer", "threads", "initial_weights")


class UserErrors:
    """Decides which trials can only end as others did: in an exception of the user's model.

    What one strategy raises may be the strategy's doing: a wrapper without the attribute that a loss function
    reads, a parameter that is a shard. So several have to agree, to the line and the message.
    """

    def __init__(self) -> None:
        self._raised: dict[Hashable, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
        """Kind of job and its work -> error -> the trials that ended in it."""
        self._sound: set[Hashable] = set()
        """Kinds of job and work of which a trial was measured."""

    def remember(self, record: Record) -> None:
        """Take in how a trial has ended."""
        key = record.job.kind, _work(record.case)
        if record.status is Status.MEASURED:
            self._sound.add(key)
        elif record.failure and _is_at_once(record.failure, record.job.kind) and _has_own_rows(record.case):
            self._raised[key][record.failure.user_error].append(record)

    def why_not(self, task: PlannedTrial) -> str:
        """Why *task* is not to be launched; empty: it may not fail."""
        if not job_kind(task.job.kind).trains or not _has_own_rows(task.case):
            return ""
        # other kinds ask more of a model than to be timed: other dtypes, deterministic algorithms
        for kind in {MEASURE, task.job.kind}:
            key = kind, _work(task.case)
            for records in self._raised.get(key, {}).values() if key not in self._sound else ():
                if _is_bound_to_repeat(task.case, [record.case for record in records]):
                    return _reason(records)
        return ""


def _reason(records: Sequence[Record]) -> str:
    names = " and ".join([*dict.fromkeys(record.case.name for record in records)][:2])
    place = records[0].failure.user_place if records[0].failure else ""
    return f"{NOT_LAUNCHED}: {place} ended {names}, and would end this one"


def _is_at_once(failure: Failure, kind: str) -> bool:
    """Whether the user's model raised before any step had ended: a later one may depend on the optimizer."""
    first = "warmup" if kind == MEASURE else kind
    return bool(failure.user_error) and failure.steps.get(str(failure.rank)) in ("build", f"{first} 0")


def _work(case: Case) -> Hashable:
    """What decides the first forward and backward pass, besides the strategy and how many rows it is of."""
    return tuple(pair for pair in case.work() if pair[0].partition(".")[0] not in _IRRELEVANT)


def _has_own_rows(case: Case) -> bool:
    """Whether every rank calls the whole model with whole rows."""
    batch = case.batch
    passes = batch.micro_batch_size * batch.gradient_accumulation_steps
    return passes * case.world_size == batch.global_batch_size


def _is_bound_to_repeat(case: Case, failed: Sequence[Case]) -> bool:
    """Whether *case* ends as those that *failed* in the same error, of the same work."""
    rows = {each.batch.micro_batch_size for each in failed}
    if case.batch.micro_batch_size not in rows and len(rows) < 2:
        return False
    if case.world_size == 1 and all(each.world_size > 1 for each in failed):
        # a line that only some ranks come to
        return False
    if case.world_size > 1 and all(each.world_size == 1 for each in failed):
        # a loss that is written for a wrapper fails without one
        return False
    names = {each.strategy.name for each in failed}
    if names.isdisjoint(_WHOLE):
        return False
    casts = case.precision.compute != case.precision.master
    ways = {SINGLE if casts and name in _WHOLE else name for name in names}
    return len(ways) > 1 or (SINGLE in names and not casts)
