"""Analyse the trace of one rank: what tables and pages need of it, without its events."""

from __future__ import annotations

import bisect
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from distbench.analysis.step_timeline import RankStep
from distbench.analysis.traces.breakdown import break_down, part_seconds
from distbench.analysis.traces.call_stacks import call_sites
from distbench.analysis.traces.collectives import TraceCollective, find_collectives
from distbench.analysis.traces.differences import CauseSeconds, cause_seconds
from distbench.analysis.traces.idle_causes import synchronisations
from distbench.analysis.traces.launches import Launches, LaunchTimes
from distbench.analysis.traces.matmuls import MatmulTimes, matmul_times
from distbench.analysis.traces.step_memory import StepMemory, step_memory
from distbench.analysis.traces.steps import ALWAYS, TraceStep, find_steps
from distbench.analysis.traces.time_losses import LostTime, lost_times
from distbench.analysis.traces.timeline import middle_step
from distbench.analysis.traces.work import Work, find_work
from distbench.analysis.traces.work_times import WorkTime, work_times
from distbench.system.garbage_collection import paused_collection
from distbench.traces.chrome_file import TraceFile, TraceFileError, read_file
from distbench.traces.intervals import TimeInterval, TimeIntervals, intersection, length, union
from distbench.traces.trace import Trace, read_trace


@dataclass(frozen=True)
class MeasuredStep:
    """One step of a rank."""

    name: str
    interval: TimeInterval
    parts: dict[str, float]
    """Seconds of each part, as ``part_seconds`` names them."""
    comm_s: float
    """Time in which any collective ran."""
    launches: LaunchTimes
    """Launches while the host was in it."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.interval[1] - self.interval[0]


@dataclass
class RankTrace:
    """Trace of one rank, analysed; small, whatever the size of the trace."""

    rank: int
    path: Path
    device: str
    """Name of the device; empty: not known, or none."""
    world_size: int | None
    is_on_device: bool
    """True if a device computed; otherwise the host did."""
    steps: list[MeasuredStep]
    step_marks: str
    """What marks the steps, for people."""
    causes: CauseSeconds
    """Seconds of each cause in a mean step."""
    lost: list[LostTime]
    """Lost time in a mean step, without that of communication."""
    collectives: list[TraceCollective]
    operators: list[WorkTime]
    modules: list[WorkTime]
    kernels: list[WorkTime]
    """None of a rank without a device."""
    matmuls: list[MatmulTimes]
    launches: LaunchTimes
    """Launches in the whole trace."""
    memory: list[StepMemory]
    """None if the profiler recorded no memory."""
    middle_step: tuple[TraceStep, RankStep]
    """Its step in the middle, with computation and copies."""
    notes: list[str]
    """Sentences on choices, damage and missing parts."""

    @property
    def step_s(self) -> float:
        """Length of a step in seconds, mean over the steps."""
        return statistics.fmean(step.seconds for step in self.steps)


def read_rank(path: Path, rank: int, *, is_given: bool = False) -> RankTrace:
    """Read and analyse the trace in the file *path*.

    Args:
        path: The file.
        rank: Its rank, if neither the file nor its name tells one.
        is_given: Take that rank in any case.

    Raises:
        TraceFileError: it is no trace.
    """
    with paused_collection():
        file = read_file(path)
        number, note = _rank_of(file, rank, is_given=is_given)
        return _analyse(number, file, [note] if note else [])


def _rank_of(file: TraceFile, fallback: int, *, is_given: bool) -> tuple[int, str]:
    """Rank of *file*, and a sentence if it does not tell."""
    if is_given:
        return fallback, ""
    if file.rank is not None:
        return file.rank, ""
    if named := re.search(r"rank[-_.]?(\d+)", file.path.name, re.IGNORECASE):
        return int(named[1]), ""
    return fallback, f"it does not say its rank, taken as {fallback}; --rank sets it"


def _analyse(rank: int, file: TraceFile, notes: Sequence[str]) -> RankTrace:
    """Analyse *file*, whose list of events is emptied: a trace of 1 GB has millions."""
    trace = read_trace(file.events, file.origin_ns)
    file.events.clear()
    work = find_work(trace)
    if not work:
        raise TraceFileError(
            f"{file.path}: no kernel and no operation is in it, so there is nothing to explain"
        )
    steps, marks = find_steps(trace)
    pieces = break_down(trace, work, steps)
    collectives = find_collectives(trace, work, pieces, file.world_size)
    launches = Launches(work, trace.runtime_calls)
    comm = union(map(trace.interval_in_step, trace.backend_events))
    memory = [*step_memory(file.memory, steps, on_device=trace.is_on_device)]
    span = steps[0].interval[0], steps[-1].interval[1]
    computation = [each for each in work if each.kind == "compute" and span[0] <= each.event.begin < span[1]]
    return RankTrace(
        rank,
        file.path,
        file.device,
        file.world_size,
        trace.is_on_device,
        [
            MeasuredStep(
                step.name,
                step.interval,
                part_seconds(of_step),
                length(_inside(comm, step.interval)),
                launches.within(step.host),
            )
            for step, of_step in zip(steps, pieces, strict=True)
        ],
        marks,
        cause_seconds(pieces),
        lost_times(pieces, call_sites(trace.python_calls, synchronisations(trace))),
        collectives,
        work_times(computation, lambda each: each.operator),
        work_times(computation, lambda each: each.module),
        work_times(computation, lambda each: each.event.name) if trace.is_on_device else [],
        matmul_times(trace, work),
        launches.within(ALWAYS),
        memory,
        middle_step(rank, steps, pieces, trace.copies),
        [*notes, *file.notes, *_missing_parts(trace, work, has_memory=bool(memory))],
    )


def _inside(intervals: TimeIntervals, step: TimeInterval) -> TimeIntervals:
    """Part of *intervals*, sorted and disjoint, that is inside *step*."""
    first = bisect.bisect_right(intervals, step[0], key=lambda each: each[1])
    last = bisect.bisect_left(intervals, step[1], key=lambda each: each[0])
    return intersection(intervals[first:last], [step])


def _missing_parts(trace: Trace, work: Iterable[Work], *, has_memory: bool) -> list[str]:
    """Sentences on what a trace lacks, and what can't be said without it."""
    notes = []
    if not trace.is_on_device:
        notes.append(
            "no kernel of a device is in it, so times are those of operations on the host: "
            "a training on CPUs, or a profile without ProfilerActivity.CUDA"
        )
    if not trace.host_operations:
        notes.append("no operation of the host is in it, so kernels have no operator and gaps no cause")
    shaped = any("Input Dims" in op.arguments for op in trace.host_operations)
    if trace.host_operations and not shaped:
        notes.append("shapes were not recorded (record_shapes=True), so matrix products have no FLOPs")
    if not has_memory:
        notes.append("memory was not recorded (profile_memory=True), so its peak and growth are not known")
    devices = {each.event.arguments.get("device") for each in work if each.event.kind == "kernel"}
    if len(devices) > 1:
        notes.append(f"one process uses {len(devices)} devices, whose kernels are counted together")
    return notes
