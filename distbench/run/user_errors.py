"""Skip trials that would repeat an error of the user's model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from distbench.core.case import Case
from distbench.core.job import MEASURE, job_kind
from distbench.plan import PlannedTrial
from distbench.record import NOT_LAUNCHED_TEXT, Failure, Record, Status
from distbench.strategies.base import REFERENCE_STRATEGY

_WHOLE_PARAMETER_STRATEGIES = (REFERENCE_STRATEGY, "dp", "ddp")
"""Strategies under which the module keeps whole parameters, and casts alike where it computes in 16 bits."""
_IRRELEVANT_KEYS = ("strategy", "world_size", "batch", "optimizer", "threads", "initial_weights")


class UserErrors:
    """Decides which trials can only end as others did: in an exception of the user's model.

    An error under one strategy may be the strategy's fault: a wrapper without the attribute that a loss
    function reads, a parameter that is a shard. Therefore several have to agree in line and message.
    """

    def __init__(self) -> None:
        self._raised: dict[Hashable, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
        """Kind of job and its work -> error -> trials that ended with it."""
        self._measured: set[Hashable] = set()
        """Kinds of job and work with a measured trial."""

    def add(self, record: Record) -> None:
        """Add the outcome of a trial."""
        key = record.job.kind, _first_pass_key(record.case)
        if record.status is Status.MEASURED:
            self._measured.add(key)
        elif (
            record.failure
            and _failed_before_first_step(record.failure, record.job.kind)
            and _has_whole_rows(record.case)
        ):
            self._raised[key][record.failure.user_error].append(record)

    def skip_reason(self, task: PlannedTrial) -> str:
        """Reason not to launch *task*; empty: it may succeed."""
        if not job_kind(task.job.kind).trains_model or not _has_whole_rows(task.case):
            return ""
        # other kinds demand more of a model than timing: other dtypes, deterministic algorithms
        for kind in {MEASURE, task.job.kind}:
            key = kind, _first_pass_key(task.case)
            for records in self._raised.get(key, {}).values() if key not in self._measured else ():
                if _would_repeat(task.case, [record.case for record in records]):
                    return _reason(records)
        return ""


def _reason(records: Sequence[Record]) -> str:
    names = " and ".join([*dict.fromkeys(record.case.name for record in records)][:2])
    place = records[0].failure.user_place if records[0].failure else ""
    return f"{NOT_LAUNCHED_TEXT}: {place} ended {names}, and would end this case"


def _failed_before_first_step(failure: Failure, kind: str) -> bool:
    """True if the user's model raised before any step had ended: later errors may be the optimizer's."""
    first = "warmup" if kind == MEASURE else kind
    return bool(failure.user_error) and failure.steps.get(str(failure.rank)) in ("build", f"{first} 0")


def _first_pass_key(case: Case) -> Hashable:
    """Settings that decide the first forward and backward pass, except strategy and number of rows."""
    return tuple(pair for pair in case.work_key() if pair[0].partition(".")[0] not in _IRRELEVANT_KEYS)


def _has_whole_rows(case: Case) -> bool:
    """True if every rank calls the whole model with whole rows."""
    batch = case.batch
    passes = batch.micro_batch_size * batch.gradient_accumulation_steps
    return passes * case.world_size == batch.global_batch_size


def _would_repeat(case: Case, failed: Sequence[Case]) -> bool:
    """True if *case* would end like the *failed* ones, all of the same work with the same error."""
    rows = {each.batch.micro_batch_size for each in failed}
    if case.batch.micro_batch_size not in rows and len(rows) < 2:
        return False
    if case.world_size == 1 and all(each.world_size > 1 for each in failed):
        # a line that only some ranks reach
        return False
    if case.world_size > 1 and all(each.world_size == 1 for each in failed):
        # a loss that is written for a wrapper fails without one
        return False
    names = {each.strategy.name for each in failed}
    if names.isdisjoint(_WHOLE_PARAMETER_STRATEGIES):
        return False
    casts = case.precision.compute != case.precision.master
    ways = {REFERENCE_STRATEGY if casts and name in _WHOLE_PARAMETER_STRATEGIES else name for name in names}
    return len(ways) > 1 or (REFERENCE_STRATEGY in names and not casts)
