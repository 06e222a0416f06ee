"""Analyse the traces of several ranks of a job together."""

from __future__ import annotations

import functools
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distbench.analysis.traces.matched_collectives import match_ranks
from distbench.analysis.traces.rank_processes import RankFile, read_ranks
from distbench.analysis.traces.rank_trace import RankTrace
from distbench.analysis.traces.time_losses import TimeLoss, find_losses, lost_in_communication
from distbench.core.errors import UsageError
from distbench.core.grouping import group_pairs
from distbench.core.units import format_count, join_words

_MOST_FILES = 3


@dataclass
class JobTrace:
    """Traces of some or all ranks of a job."""

    ranks: list[RankTrace]
    notes: list[str] = field(default_factory=list)
    """Sentences on all of them together."""

    @property
    def step_s(self) -> float:
        """Length of a step in seconds, mean over steps and ranks."""
        return statistics.fmean(rank.step_s for rank in self.ranks)

    @functools.cached_property
    def losses(self) -> list[TimeLoss]:
        """Causes of lost time of all ranks, the largest first."""
        lost = {
            rank.rank: [*rank.lost, *lost_in_communication(rank.collectives, len(rank.steps))]
            for rank in self.ranks
        }
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
    files = [
        RankFile(path, place if rank is None else rank, is_given=rank is not None)
        for place, path in enumerate(paths)
    ]
    ranks: dict[int, RankTrace] = {}
    for read in read_ranks(files):
        if other := ranks.get(read.rank):
            raise UsageError(
                f"{other.path} and {read.path}: both are of rank {read.rank}; give one file of each rank, "
                "of one trial"
            )
        ranks[read.rank] = read
    every = [ranks[number] for number in sorted(ranks)]
    return JobTrace(every, [*_job_notes(every), *_rank_notes(every)])


def _job_notes(ranks: Sequence[RankTrace]) -> list[str]:
    sizes = {rank.world_size for rank in ranks if rank.world_size is not None}
    if len(sizes) > 1:
        listed = ", ".join(map(str, sorted(sizes)))
        return [f"the traces are of jobs of different world sizes ({listed}), so their ranks are not matched"]
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
