"""Numbers that a trace tells, in the columns of measured trials and by their definitions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from distbench.analysis.traces.collectives import TraceCollective
from distbench.analysis.traces.job_trace import JobTrace
from distbench.analysis.traces.rank_trace import MeasuredStep, RankTrace
from distbench.core.errors import UsageError
from distbench.traces.intervals import intersection, length

RankValues = dict[str, list[float | None]]
"""Column -> value of each step, or the only one."""
UNMATCHED = "not all collectives of a step could be matched with those in the traces of other ranks"
_NO_COLLECTIVE = "no collective is in the trace"
_NO_BYTES = "the trace does not tell the bytes of all collectives"
_NO_MEMORY = "memory was not recorded (profile_memory=True)"
_HOST_MEMORY = "on a CPU a trace counts only what was allocated under the profiler"


def common_steps(job: JobTrace) -> dict[int, list[MeasuredStep]]:
    """Steps of each rank that all ranks have, by their names.

    Raises:
        UsageError: there is none, so the traces are not of one training.
    """
    names = set.intersection(*({step.name for step in rank.steps} for rank in job.ranks))
    if not names:
        first, *_, last = job.ranks
        raise UsageError(
            f"{first.path} and {last.path}: no step is in the traces of all ranks, so they can't be kept as "
            "one run; give files of the same steps"
        )
    return {rank.rank: [step for step in rank.steps if step.name in names] for rank in job.ranks}


def calls_in(rank: RankTrace, step: MeasuredStep) -> list[TraceCollective]:
    """Collectives of *rank* that began in *step*, in their order."""
    begin, end = step.interval
    return sorted(
        (call for call in rank.collectives if begin <= call.begin < end), key=lambda call: call.begin
    )


def rank_values(
    rank: RankTrace, steps: Sequence[MeasuredStep], world_size: int
) -> tuple[RankValues, dict[str, str]]:
    """Values of *rank*, and the reasons for those that its trace does not tell."""
    values: RankValues = {
        "step_s": [step.seconds for step in steps],
        "profile_step_s": [step.seconds for step in steps],
        "profile_exposed_comm_s": [step.parts.get("communication", 0.0) for step in steps],
        "profile_idle_s": [step.parts.get("idle", 0.0) for step in steps],
    }
    absent: dict[str, str] = {}
    for made, reasons in (_communication(rank, steps, world_size), _memory(rank)):
        values |= made
        absent |= reasons
    return values, absent


def _communication(
    rank: RankTrace, steps: Sequence[MeasuredStep], world_size: int
) -> tuple[RankValues, dict[str, str]]:
    times = ("comm_s", "comm_exposed_s", "comm_transfer_s", "comm_wait_s")
    if not rank.collectives and world_size > 1:
        return {}, dict.fromkeys((*times, "work_s", "comm_calls", "comm_bytes"), _NO_COLLECTIVE)
    of_steps = [calls_in(rank, step) for step in steps]
    values: RankValues = {
        "comm_s": [step.comm_s for step in steps],
        "comm_exposed_s": [step.parts.get("communication", 0.0) for step in steps],
        "comm_calls": [float(len(calls)) for calls in of_steps],
    }
    absent = {}
    if all(call.bytes is not None for calls in of_steps for call in calls):
        values["comm_bytes"] = [float(sum(call.bytes or 0 for call in calls)) for calls in of_steps]
    else:
        absent["comm_bytes"] = _NO_BYTES
    if all(call.transfer_s is not None for calls in of_steps for call in calls):
        values["comm_transfer_s"] = [sum(call.transfer_s or 0.0 for call in calls) for calls in of_steps]
        values["comm_wait_s"] = [sum(call.wait_s or 0.0 for call in calls) for calls in of_steps]
        values["work_s"] = [
            step.seconds - sum(_exposed_waiting(call, step) for call in calls)
            for step, calls in zip(steps, of_steps, strict=True)
        ]
    else:
        absent |= dict.fromkeys(("comm_transfer_s", "comm_wait_s", "work_s"), UNMATCHED)
    return values, absent


def _exposed_waiting(call: TraceCollective, step: MeasuredStep) -> float:
    waited = intersection([call.waited], [step.interval]) if call.waited else []
    return length(intersection(call.exposed, waited))


def _memory(rank: RankTrace) -> tuple[RankValues, dict[str, str]]:
    if not rank.memory or not rank.is_on_device:
        why = _HOST_MEMORY if rank.memory else _NO_MEMORY
        return {}, dict.fromkeys(("memory_peak", "memory_reserved_peak"), why)
    return {
        "memory_peak": [float(max(each.peak for each in rank.memory))],
        "memory_reserved_peak": [float(max(each.reserved or 0 for each in rank.memory))],
    }, {}


def imbalance(work: Mapping[int, Sequence[float | None]]) -> float | None:
    """Work of the slowest rank over that of the median rank, mean over the steps; *work* is by rank."""
    steps = [[each for each in step if each is not None] for step in zip(*work.values(), strict=True)]
    ratios = [max(step) / median for step in steps if (median := statistics.median(step)) > 0]
    return statistics.fmean(ratios) if ratios else None
