"""One rank's profiled steps: their parts, and each collective with its transfer and its waiting."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from distbench.metrics.base import Absent, Session, Values
from distbench.metrics.communication.traffic import Counted, wire_factor
from distbench.metrics.profile import WARM_STEPS, one_step, pipeline
from distbench.metrics.profile.breakdown import parts
from distbench.metrics.profile.intervals import difference, length, union
from distbench.metrics.profile.nodes import Transfer, of_nodes
from distbench.metrics.profile.steps import Step, compare_ranks, made, of_all_ranks
from distbench.metrics.profile.trace import Trace, clipped, read
from distbench.metrics.steptime import drift

_UNMATCHED = "the collectives in the trace do not match those that were counted"
_NO_KERNELS = (
    "the profiler has seen no kernel of the GPU: another tool has CUPTI (Nsight, DCGM's profiling), or this "
    "user may not use it (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES); the log of the rank may say which"
)
_IMBALANCED = 1.2
_OUTLIER = 3.0


@dataclass
class Timeline:
    """Results of the profiled steps of one rank."""

    values: Values
    rows: list[dict[str, Any]] = field(default_factory=list)
    """One for each collective of each step; empty if they can't be matched with the trace."""
    flags: list[str] = field(default_factory=list)
    """Reasons to look at the trace; the same on every rank."""
    attention: list[str] = field(default_factory=list)
    """Kernels that attention ran."""
    unseen: str = ""
    """Why the trace shows nothing of the steps; empty: it does."""
    one_step: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the table ``timeline``; empty if those of this rank are not kept."""
    passes: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the table ``pipeline``; empty if there is none."""


def of(session: Session, counted: Counted | None, events: Iterable[Any]) -> Timeline:
    """Timeline of this rank's profiler *events* with the *counted* collectives. A collective call."""
    trace = read(events)
    unseen, warm = _unseen(session, trace), WARM_STEPS.get(session.device.type, 0)
    profiled = [] if unseen else [*enumerate(trace.marks.get("step", []))][warm:]
    steps = [made(trace, interval, counted.of(i) if counted else []) for i, interval in profiled]
    compare_ranks(session, trace, steps)
    columns: dict[str, list[float | None]] = {}
    for step in steps:
        for name, value in _numbers(trace, step).items():
            columns.setdefault(name, []).append(value)
    flags = _agreed(session, _flags(session, steps, counted), columns.get("work_s", []))
    unknown = Absent(_UNMATCHED if counted else "needs the metric communication")
    values: Values = {name: unknown if None in numbers else numbers for name, numbers in columns.items()}
    values |= of_nodes(session, [_transfers(step) for step in steps], trace.compute)
    values |= _of_pipeline(session, values)
    choice = _choice(session, trace, steps, columns.get("work_s", []))
    return Timeline(
        values,
        _rows(trace, steps),
        flags,
        sorted(trace.attention),
        unseen,
        _one_step(session, trace, steps, choice),
        _passes(session, trace, steps, choice),
    )


def _unseen(session: Session, trace: Trace) -> str:
    if session.drives > 1:
        return f"one process drives {session.drives} devices, whose kernels are in one trace"
    if session.device.type == "cuda" and not trace.kernels:
        return _NO_KERNELS
    return ""


def _of_pipeline(session: Session, values: Values) -> Values:
    """What a pipeline should wait by theory; of anything else why there are no such numbers."""
    if "bubble" not in values:
        return {column.name: Absent(pipeline.NO_PASSES) for column in pipeline.COLUMNS}
    theory = session.effective.get("bubble_theory")
    return {"bubble_theory": Absent("the engine has no theory of it") if theory is None else float(theory)}


def _choice(
    session: Session, trace: Trace, steps: list[Step], work: list[float | None]
) -> one_step.Choice | None:
    """The step that is kept, and of which ranks. A collective call."""
    seconds = [step.interval[1] - step.interval[0] for step in steps]
    told = one_step.Told(
        seconds,
        [whole if own is None else own for own, whole in zip(work, seconds, strict=True)],
        [trace.origin_ns + round(step.interval[0] * 1e9) for step in steps],
    )
    return one_step.choose(of_all_ranks(session, told), session.nodes)


def _one_step(
    session: Session, trace: Trace, steps: list[Step], choice: one_step.Choice | None
) -> list[dict[str, Any]]:
    """Rows of the table ``timeline``, if this rank is one of those that are kept."""
    if choice is None or session.rank not in choice.late:
        return []
    step = steps[choice.step]
    return one_step.rows(trace, step.interval, _collectives(step), choice.step, choice.late[session.rank])


def _passes(
    session: Session, trace: Trace, steps: list[Step], choice: one_step.Choice | None
) -> list[dict[str, Any]]:
    """Rows of the table ``pipeline``."""
    if choice is None:
        return []
    return [*pipeline.rows(trace, steps[choice.step].interval, choice.step, choice.of_all[session.rank])]


def _collectives(step: Step) -> Iterator[one_step.Collective]:
    """What the backend ran in *step*, as asked for where that is known."""
    known = {done.event: done for done in step.done or ()}
    for event in step.ranges:
        if event not in known:
            yield one_step.Collective(event.name, None, event.interval)
            continue
        done = known[event]
        waited = event.begin, done.moved_from
        yield one_step.Collective(done.call.op, done.call.group, event.interval, waited)


def _transfers(step: Step) -> list[Transfer] | None:
    if step.done is None:
        return None
    begin, end = step.interval
    return [
        Transfer(
            done.call,
            (done.moved_from, done.event.end),
            in_step=(max(done.moved_from, begin), min(done.event.end, end)),
        )
        for done in step.done
        if done.call.group_size > 1
    ]


def _numbers(trace: Trace, step: Step) -> dict[str, float | None]:
    whole = step.interval[1] - step.interval[0]
    numbers: dict[str, float | None] = {"profile_step_s": whole}
    by_part = parts(trace, step.interval, step.comm)
    numbers |= {f"profile_{part}_s": seconds for part, seconds in by_part.items()}
    numbers |= {"comm_s": length(step.comm), "comm_exposed_s": length(step.exposed)}
    moved = _transfers(step)
    moving = None if moved is None else [each.interval for each in moved]
    numbers |= pipeline.numbers(trace, step.interval, step.comm, moving)
    if step.done is None:
        return {**numbers, "comm_transfer_s": None, "comm_wait_s": None, "work_s": None}
    apart = [done for done in step.done if done.call.group_size > 1]
    waits = union((done.event.begin, done.moved_from) for done in apart)
    waiting = length(difference(clipped(waits, step.interval), trace.compute))
    return {
        **numbers,
        "comm_transfer_s": sum(done.transfer for done in apart),
        "comm_wait_s": sum(done.wait for done in apart),
        "work_s": whole - waiting,
    }


def _rows(trace: Trace, steps: list[Step]) -> list[dict[str, Any]]:
    rows = []
    for number, step in enumerate(steps):
        if step.done is None:
            continue
        for place, done in enumerate(step.done):
            factor = wire_factor(done.event.name, done.call.group_size)
            row = {
                **done.call.row(number, place),
                "ran": done.event.name,
                "wire_bytes": None if factor is None else done.call.bytes * factor,
                "seconds": done.seconds,
                "transfer_s": done.transfer,
                "wait_s": done.wait,
                "exposed_s": length(difference([done.event.interval], trace.compute)),
            }
            rows.append(row)
    return rows


def _flags(session: Session, steps: list[Step], counted: Counted | None) -> list[str]:
    flags = []
    if any(step.done is None for step in steps) and counted and session.world_size > 1:
        flags.append(_UNMATCHED)
    timed = session.earlier.get("time", [])
    if timed and max(timed) > _OUTLIER * statistics.median(timed):
        flags.append(f"a timed step took {max(timed) / statistics.median(timed):.1f}x the median step")
    if drift.unsettled(drift.stretch(session.earlier.get("warmup", []), timed)):
        flags.append("steps were still speeding up during timing")
    return flags


def _agreed(session: Session, mine: list[str], work: list[float | None]) -> list[str]:
    """Flags of all ranks, and that of an imbalance between them."""
    every = of_all_ranks(session, (mine, [seconds for seconds in work if seconds is not None]))
    flags = {f"rank {rank}: {reason}": None for rank, (reasons, _) in enumerate(every) for reason in reasons}
    means = [statistics.fmean(seconds) for _, seconds in every if seconds]
    if len(means) == session.world_size > 1:
        worst, median = max(means), statistics.median(means)
        if worst > _IMBALANCED * median:
            flags[f"rank {means.index(worst)} works {worst / median:.2f}x as long as the median rank"] = None
    return list(flags)
