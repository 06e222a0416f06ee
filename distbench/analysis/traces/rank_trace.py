"""Analyse the trace of one rank, and those of several ranks of a job together."""

from __future__ import annotations

import bisect
import functools
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distbench.analysis.traces.breakdown import Piece, break_down
from distbench.analysis.traces.call_stacks import call_sites
from distbench.analysis.traces.collectives import TraceCollective, find_collectives
from distbench.analysis.traces.idle_causes import synchronisations
from distbench.analysis.traces.losses import Loss, find_losses, lost_times
from distbench.analysis.traces.matched_collectives import match_ranks
from distbench.analysis.traces.steps import TraceStep, find_steps
from distbench.analysis.traces.work import Work, find_work
from distbench.core.errors import UsageError
from distbench.core.grouping import group_pairs
from distbench.core.units import format_count, join_words
from distbench.system.garbage_collection import paused_collection
from distbench.traces.chrome_file import TraceFile, TraceFileError, read_file
from distbench.traces.intervals import intersection, length, union
from distbench.traces.trace import Trace, read_trace

_MOST_FILES = 3


@dataclass
class RankTrace:
    """Trace of one rank, analysed."""

    rank: int
    path: Path
    trace: Trace
    device: str
    """Name of the device; empty: not known, or none."""
    world_size: int | None
    work: list[Work]
    steps: list[TraceStep]
    step_marks: str
    """What marks the steps, for people."""
    pieces: list[list[Piece]]
    """Pieces of each step."""
    collectives: list[TraceCollective]
    notes: list[str]
    """Sentences on choices, damage and missing parts."""

    @property
    def step_s(self) -> float:
        """Length of a step in seconds, mean over the steps."""
        return statistics.fmean(step.seconds for step in self.steps)

    @property
    def comm_s(self) -> float:
        """Time in which a collective ran during the steps."""
        spans = [step.interval for step in self.steps]
        running = union(event.interval for event in self.trace.backend_events)
        return length(intersection(running, union(spans)))

    @property
    def launch_delay_s(self) -> float | None:
        """Median time from the launch of a kernel to its begin; None: not known."""
        delays = [end - begin for begin, end in self._launches()]
        return statistics.median(delays) if delays else None

    @property
    def queue_depth(self) -> float | None:
        """Median number of kernels and copies that wait on the device when the host launches another.

        Near 0 the device waits for the host; None: not known.
        """
        pairs = self._launches()
        begun = sorted(end for _, end in pairs)
        launched = sorted(begin for begin, _ in pairs)
        depths = [place - bisect.bisect_right(begun, moment) for place, moment in enumerate(launched)]
        return statistics.median(depths) if depths else None

    def _launches(self) -> list[tuple[float, float]]:
        """Launch and begin of all work whose launch is in the trace."""
        return [
            (event.launched, event.begin)
            for event in (work.event for work in self.work)
            if event.launched is not None and event.launch_thread is not None
        ]


@dataclass
class JobTrace:
    """Traces of some or all ranks of a job."""

    ranks: list[RankTrace]
    notes: list[str] = field(default_factory=list)
    """Sentences on all of them together."""

    @property
    def pieces(self) -> list[list[list[Piece]]]:
        """Pieces by rank and step."""
        return [rank.pieces for rank in self.ranks]

    @property
    def step_s(self) -> float:
        """Length of a step in seconds, mean over steps and ranks."""
        return statistics.fmean(rank.step_s for rank in self.ranks)

    @functools.cached_property
    def losses(self) -> list[Loss]:
        """Causes of lost time of all ranks, the largest first."""
        lost = {}
        for rank in self.ranks:
            sites = call_sites(rank.trace.python_calls, synchronisations(rank.trace))
            lost[rank.rank] = lost_times(rank.pieces, rank.collectives, sites)
        return find_losses(lost, self.step_s)


def trace_files(paths: Iterable[Path]) -> list[Path]:
    """Files among *paths*, and traces in folders among them, by name.

    Raises:
        UsageError: a path does not exist, or a folder has no trace.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(
                file for file in path.rglob("*.json*") if re.search(r"trace\.json(\.gz)?$", file.name)
            )
            inside = inside or sorted(
                file for file in path.iterdir() if re.search(r"\.json(\.gz)?$", file.name)
            )
            if not inside:
                raise UsageError(f"{path}: no *.json or *.json.gz in this folder")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise UsageError(f"{path}: there is no such file")
    return found


def read_job(paths: Sequence[Path], rank: int | None = None) -> JobTrace:
    """Read and analyse the traces in the files *paths*.

    Args:
        paths: One file of each rank.
        rank: Rank of the only file; None: as it says.

    Raises:
        TraceFileError: a file is no trace.
        UsageError: two files are of the same rank.
    """
    if rank is not None and rank < 0:
        raise UsageError(f"--rank = {rank}: ranks count from 0")
    if rank is not None and len(paths) > 1:
        raise UsageError(f"--rank = {rank}: it names the rank of one file, and here are {len(paths)}")
    ranks: dict[int, RankTrace] = {}
    notes = []
    for place, path in enumerate(paths):
        with paused_collection():
            file = read_file(path)
            number, said = _rank_of(file, place if rank is None else rank, is_given=rank is not None)
            if number in ranks:
                raise UsageError(
                    f"{ranks[number].path} and {path}: both are of rank {number}; give one file of each rank"
                )
            ranks[number] = _analyse(number, file)
        notes += [said] if said else []
    job = JobTrace([ranks[number] for number in sorted(ranks)], notes)
    job.notes += [*_job_notes(job.ranks), *_rank_notes(job.ranks)]
    return job


def _rank_of(file: TraceFile, fallback: int, *, is_given: bool) -> tuple[int, str]:
    """Rank of *file*, and a sentence if it does not tell."""
    if is_given:
        return fallback, ""
    if file.rank is not None:
        return file.rank, ""
    if named := re.search(r"rank[-_.]?(\d+)", file.path.name, re.IGNORECASE):
        return int(named[1]), ""
    return fallback, f"{file.path.name}: it does not say its rank, taken as {fallback}; --rank sets it"


def _analyse(rank: int, file: TraceFile) -> RankTrace:
    """Analyse *file*, whose list of events is emptied: a trace of 1 GB has millions."""
    trace = read_trace(file.events, file.origin_ns)
    file.events.clear()
    work = find_work(trace)
    if not work:
        raise TraceFileError(
            f"{file.path}: no kernel and no operation is in it, so there is nothing to explain"
        )
    steps, marks = find_steps(trace)
    notes = [*file.notes, *_missing_parts(trace, work)]
    return RankTrace(
        rank,
        file.path,
        trace,
        file.device,
        file.world_size,
        work,
        steps,
        marks,
        break_down(trace, work, steps),
        find_collectives(trace, work, file.world_size),
        notes,
    )


def _missing_parts(trace: Trace, work: Sequence[Work]) -> list[str]:
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
    devices = {each.event.arguments.get("device") for each in work if each.event.kind == "kernel"}
    if len(devices) > 1:
        notes.append(f"one process uses {len(devices)} devices, whose kernels are counted together")
    return notes


def _job_notes(ranks: Sequence[RankTrace]) -> list[str]:
    sizes = {rank.world_size for rank in ranks if rank.world_size is not None}
    if len(sizes) > 1:
        told = ", ".join(map(str, sorted(sizes)))
        return [f"the traces are of jobs of different world sizes ({told}), so their ranks are not matched"]
    notes = []
    if sizes and len(ranks) < (size := sizes.pop()):
        notes.append(f"traces of {len(ranks)} of {size} ranks: waiting and late ranks are those among these")
    if any(rank.collectives for rank in ranks):
        problem = match_ranks({rank.rank: rank.collectives for rank in ranks})
        notes += [problem] if problem else []
    return notes


def _rank_notes(ranks: Sequence[RankTrace]) -> list[str]:
    """Notes of all ranks; one that several have names their files once."""
    files = group_pairs((note, rank.path.name) for rank in ranks for note in rank.notes)
    return [
        f"{join_words(names) if len(names) <= _MOST_FILES else format_count(len(names), 'file')}: {note}"
        for note, names in files.items()
    ]
