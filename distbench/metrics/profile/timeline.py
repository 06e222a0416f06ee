"""Analysis of the profiled steps of one rank: parts of a step, transfers and waiting of collectives."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distbench.metrics.base import NotAvailable, PassContext, Values
from distbench.metrics.communication.traffic import CountedCollectives, wire_factor
from distbench.metrics.profile import WARM_STEPS, layer_times, pipeline, step_timeline
from distbench.metrics.profile.breakdown import step_parts
from distbench.metrics.profile.exchange import Exchange
from distbench.metrics.profile.nodes import Transfer, link_values
from distbench.metrics.profile.steps import ProfiledStep, find_shortest_times, profiled_step
from distbench.metrics.steptime import drift
from distbench.traces.intervals import TimeInterval, difference, length, union
from distbench.traces.trace import Trace, clip_to_step

if TYPE_CHECKING:
    from distbench.metrics.profile.layers import LayerHooks

_UNMATCHED = "the collectives in the trace do not match those that were counted"
_NO_KERNELS = (
    "the profiler recorded no GPU kernel: another tool uses CUPTI (Nsight, DCGM profiling), or this "
    "user has no permission (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES); see the log of the rank"
)
_IMBALANCED = 1.2
_OUTLIER = 3.0


@dataclass
class ProfileResult:
    """Results of the profiled steps of one rank."""

    values: Values
    collective_rows: list[dict[str, Any]] = field(default_factory=list)
    """One row per collective and step; empty if they can't be matched with the trace."""
    flags: list[str] = field(default_factory=list)
    """Reasons to inspect the trace; the same on every rank."""
    attention: list[str] = field(default_factory=list)
    """Attention kernels that ran."""
    unavailable_reason: str = ""
    """Reason why the trace shows nothing of the steps; empty: it does."""
    timeline_rows: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the table ``timeline``; empty if this rank is not recorded."""
    pipeline_rows: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the table ``pipeline``; empty if there is none."""
    layer_rows: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the table ``layers``; empty if this rank writes none."""


def analyse_profile(
    context: PassContext,
    counted: CountedCollectives | None,
    trace: Trace,
    layers: LayerHooks | None = None,
) -> Exchange[ProfileResult]:
    """Analyse the *trace* of this rank with the *counted* collectives."""
    unseen, warm = _unavailable_reason(context, trace), WARM_STEPS.get(context.device.type, 0)
    profiled = [] if unseen else [*enumerate(trace.marks.get("step", []))][warm:]
    steps = [
        profiled_step(trace, interval, counted.calls_of_step(i) if counted else [])
        for i, interval in profiled
    ]
    yield from find_shortest_times(context, trace, steps)
    columns: dict[str, list[float | None]] = {}
    for step in steps:
        for name, value in _step_values(trace, step).items():
            columns.setdefault(name, []).append(value)
    flags = yield from _flags_of_all_ranks(
        context, _flags(context, steps, counted), columns.get("work_s", [])
    )
    unknown = NotAvailable(_UNMATCHED if counted else "needs the metric communication")
    values: Values = {name: unknown if None in numbers else numbers for name, numbers in columns.items()}
    values |= link_values(context, [_transfers(step) for step in steps], trace.compute_intervals)
    values |= _pipeline_theory(context, values)
    choice = yield from _select_step(context, trace, steps, columns.get("work_s", []))
    return ProfileResult(
        values,
        _rows(trace, steps),
        flags,
        sorted(trace.attention),
        unseen,
        _timeline_rows(context, trace, steps, choice),
        _pipeline_rows(context, trace, steps, choice),
        _layer_rows(context, trace, [interval for _, interval in profiled], layers),
    )


def _layer_rows(
    context: PassContext, trace: Trace, steps: list[TimeInterval], hooks: LayerHooks | None
) -> list[dict[str, Any]]:
    """Rows of the table ``layers``, if this rank writes them."""
    if hooks is None or (context.rank and context.world_size > layer_times.MOST_RANKS):
        return []
    from distbench.metrics.profile.layers import CountedLayers

    seconds = layer_times.layer_seconds(trace, steps, hooks.layer_of_node) if steps else None
    return layer_times.layer_rows(context.shared(CountedLayers), hooks.layers, seconds)


def _unavailable_reason(context: PassContext, trace: Trace) -> str:
    if context.devices_per_rank > 1:
        return f"one process uses {context.devices_per_rank} devices, so their kernels are in one trace"
    if context.device.type == "cuda" and not trace.kernels:
        return _NO_KERNELS
    return ""


def _pipeline_theory(context: PassContext, values: Values) -> Values:
    """Theoretical bubble of a pipeline; for anything else, the reason why there are no such numbers."""
    if "bubble" not in values:
        return {column.name: NotAvailable(pipeline.NO_PASSES) for column in pipeline.COLUMNS}
    theory = context.effective.get("bubble_theory")
    return {
        "bubble_theory": NotAvailable("the engine has no formula for it") if theory is None else float(theory)
    }


def _select_step(
    context: PassContext, trace: Trace, steps: list[ProfiledStep], work: list[float | None]
) -> Exchange[step_timeline.TimelineSelection | None]:
    """Select the step and the ranks to record."""
    seconds = [step.interval[1] - step.interval[0] for step in steps]
    times = step_timeline.ProfiledStepTimes(
        seconds,
        [whole if own is None else own for own, whole in zip(work, seconds, strict=True)],
        [trace.origin_ns + round(step.interval[0] * 1e9) for step in steps],
    )
    every = yield times
    return step_timeline.select_step(every, context.nodes)


def _timeline_rows(
    context: PassContext,
    trace: Trace,
    steps: list[ProfiledStep],
    choice: step_timeline.TimelineSelection | None,
) -> list[dict[str, Any]]:
    """Rows of the table ``timeline``, if this rank is recorded."""
    if choice is None or context.rank not in choice.offsets:
        return []
    step = steps[choice.step]
    return step_timeline.timeline_rows(
        trace, step.interval, _collective_intervals(step), choice.step, choice.offsets[context.rank]
    )


def _pipeline_rows(
    context: PassContext,
    trace: Trace,
    steps: list[ProfiledStep],
    choice: step_timeline.TimelineSelection | None,
) -> list[dict[str, Any]]:
    """Rows of the table ``pipeline``."""
    if choice is None:
        return []
    return [
        *pipeline.pipeline_rows(
            trace, steps[choice.step].interval, choice.step, choice.offsets_of_all[context.rank]
        )
    ]


def _collective_intervals(step: ProfiledStep) -> Iterator[step_timeline.CollectiveInterval]:
    """Yield what the backend ran in *step*, named as requested if that is known."""
    known = {done.event: done for done in step.collectives or ()}
    for event in step.backend_events:
        if event not in known:
            yield step_timeline.CollectiveInterval(event.name, None, event.interval)
            continue
        done = known[event]
        waited = event.begin, done.transfer_start
        yield step_timeline.CollectiveInterval(done.call.op, done.call.group, event.interval, waited)


def _transfers(step: ProfiledStep) -> list[Transfer] | None:
    if step.collectives is None:
        return None
    begin, end = step.interval
    return [
        Transfer(
            done.call,
            (done.transfer_start, done.event.end),
            in_step=(max(done.transfer_start, begin), min(done.event.end, end)),
        )
        for done in step.collectives
        if done.call.group_size > 1
    ]


def _step_values(trace: Trace, step: ProfiledStep) -> dict[str, float | None]:
    whole = step.interval[1] - step.interval[0]
    numbers: dict[str, float | None] = {"profile_step_s": whole}
    by_part = step_parts(trace, step.interval, step.comm)
    numbers |= {f"profile_{part}_s": seconds for part, seconds in by_part.items()}
    numbers |= {"comm_s": length(step.comm), "comm_exposed_s": length(step.exposed)}
    moved = _transfers(step)
    moving = None if moved is None else [each.interval for each in moved]
    numbers |= pipeline.bubble_values(trace, step.interval, step.comm, moving)
    if step.collectives is None:
        return {**numbers, "comm_transfer_s": None, "comm_wait_s": None, "work_s": None}
    among_several = [done for done in step.collectives if done.call.group_size > 1]
    waits = union((done.event.begin, done.transfer_start) for done in among_several)
    waiting = length(difference(clip_to_step(waits, step.interval), trace.compute_intervals))
    return {
        **numbers,
        "comm_transfer_s": sum(done.transfer for done in among_several),
        "comm_wait_s": sum(done.wait for done in among_several),
        "work_s": whole - waiting,
    }


def _rows(trace: Trace, steps: list[ProfiledStep]) -> list[dict[str, Any]]:
    rows = []
    for number, step in enumerate(steps):
        if step.collectives is None:
            continue
        for place, done in enumerate(step.collectives):
            factor = wire_factor(done.event.name, done.call.group_size)
            row = {
                **done.call.row(number, place),
                "ran": done.event.name,
                "wire_bytes": None if factor is None else done.call.bytes * factor,
                "seconds": done.seconds,
                "transfer_s": done.transfer,
                "wait_s": done.wait,
                "exposed_s": length(difference([done.event.interval], trace.compute_intervals)),
            }
            rows.append(row)
    return rows


def _flags(context: PassContext, steps: list[ProfiledStep], counted: CountedCollectives | None) -> list[str]:
    flags = []
    if any(step.collectives is None for step in steps) and counted and context.world_size > 1:
        flags.append(_UNMATCHED)
    timed = context.earlier_step_times.get("time", [])
    if timed and max(timed) > _OUTLIER * statistics.median(timed):
        flags.append(f"a timed step took {max(timed) / statistics.median(timed):.1f}x the median step")
    if drift.is_unsettled(drift.trend_window(context.earlier_step_times.get("warmup", []), timed)):
        flags.append("steps were still speeding up during timing")
    return flags


def _flags_of_all_ranks(
    context: PassContext, mine: list[str], work: list[float | None]
) -> Exchange[list[str]]:
    """Flags of all ranks, plus one for an imbalance between ranks."""
    every = yield mine, [seconds for seconds in work if seconds is not None]
    flags = {f"rank {rank}: {reason}": None for rank, (reasons, _) in enumerate(every) for reason in reasons}
    means = [statistics.fmean(seconds) for _, seconds in every if seconds]
    if len(means) == context.world_size > 1:
        worst, median = max(means), statistics.median(means)
        if worst > _IMBALANCED * median:
            flags[f"rank {means.index(worst)} works {worst / median:.2f}x as long as the median rank"] = None
    return list(flags)
