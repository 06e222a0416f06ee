"""Collectives of a trace: operation, group, dtype, bytes and time of each call.

Since torch 2.2 kernels of NCCL carry these as arguments; before, they stand with the call on the host that
launched them, if at all. One call may run several kernels (an all-to-all is many SendRecv), and a kernel may
have a name that tells no operation (``ncclDevKernel_Generic``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distbench.analysis.traces.breakdown import Piece
from distbench.analysis.traces.call_stacks import call_stacks
from distbench.analysis.traces.dtypes import dtype_of, item_bytes
from distbench.analysis.traces.work import Work
from distbench.core.grouping import group_by, group_pairs
from distbench.metrics.communication.traffic import ranks_text
from distbench.traces.intervals import TimeInterval, length, union
from distbench.traces.trace import ProfilerEvent, Trace

_OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send_recv",
    "send",
    "recv",
)
_SPELLINGS = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}
_UNNAMED = "unnamed collective"
"""Operation of a kernel that is not named after one and was launched before the trace began."""
_RECORD = "record_param_comms"
_ANNOTATION = "nccl:"


@dataclass
class TraceCollective:
    """One collective call of a rank; what the trace does not say is None."""

    op: str
    intervals: list[TimeInterval]
    """When any of its kernels ran."""
    exposed: list[TimeInterval] = field(default_factory=list)
    """The parts of the steps in which it ran, and no computation."""
    group: str | None = None
    """Global ranks of the group, ``0-7``; its name if they are not in the trace."""
    process_group: str | None = None
    """Name of the process group: several may have the same ranks."""
    group_size: int | None = None
    dtype: str | None = None
    bytes: int | None = None
    """Bytes of the full array, as nccl-tests counts."""
    sequence: int | None = None
    """Number of the call within its group."""
    transfer_s: float | None = None
    """Shortest time that any rank spent in it; None: it is known of one rank only."""
    late_rank: int | None = None
    """Rank that spent the shortest time in it, so the one that others waited for."""

    @property
    def operator(self) -> str:
        """Operation and group, for people."""
        return self.op if self.group is None else f"{self.op} of {self.group}"

    @property
    def begin(self) -> float:
        """Begin of its first kernel."""
        return self.intervals[0][0] if self.intervals else 0.0

    @property
    def seconds(self) -> float:
        """Time in which any of its kernels ran."""
        return length(self.intervals)

    @property
    def wait_s(self) -> float | None:
        """Part of ``seconds`` in which this rank waited for another one."""
        return None if self.transfer_s is None else max(self.seconds - self.transfer_s, 0.0)

    @property
    def waited(self) -> TimeInterval | None:
        """Time in which this rank waited, which is before the transfer began; None: not known."""
        if self.wait_s is None or not self.intervals:
            return None
        return self.begin, self.intervals[-1][1] - (self.seconds - self.wait_s)


def operation_name(name: str) -> str | None:
    """Name of the collective that a library calls *name*, as nccl-tests does; None: it is none of these."""
    plain = re.sub(r"[^a-z_]", "", name.lower().removeprefix(_ANNOTATION)).strip("_")
    for spelling, known in _SPELLINGS.items():
        plain = plain.replace(spelling, known)
    # the longest first: all_reduce is no reduce
    found = [op for op in _OPERATIONS if plain.startswith(op)]
    return max(found, key=len, default=None)


def find_collectives(
    trace: Trace, every: Sequence[Work], of_steps: Iterable[Sequence[Piece]], world_size: int | None = None
) -> list[TraceCollective]:
    """Collective calls among *every* work of *trace*, by begin; sets the operator of their work.

    Args:
        trace: The trace of the rank.
        every: All its work by begin.
        of_steps: Pieces of each of its steps.
        world_size: Ranks of the job, if known.
    """
    comm = [work for work in every if work.kind == "communication"]
    records = [op for op in trace.host_operations if op.name == _RECORD]
    notes = [event for event in trace.annotations if event.name.startswith(_ANNOTATION)]
    issues: dict[int, tuple[ProfilerEvent, ...]] = {}
    moments = [
        (-1 if w.event.launch_thread is None else w.event.launch_thread, w.event.launched or 0.0)
        for w in comm
    ]
    for place, stack in call_stacks([*records, *notes], moments):
        issues[place] = stack

    def call_key(place: int) -> object:
        # kernels of one call share the call on the host; other ones are calls of their own
        return id(issues[place][0]) if issues.get(place) else (place,)

    calls = group_by(range(len(comm)), call_key)
    exposed = group_pairs(
        (id(piece.work), (piece.begin, piece.end))
        for pieces in of_steps
        for piece in pieces
        if piece.kind == "communication"
    )
    # a group of one rank runs no kernel
    only_group = "0,1" if world_size == 2 else None
    found = []
    for places in calls.values():
        work = [comm[i] for i in places]
        call = _collective(work, issues.get(places[0], ()), only_group)
        for each in work:
            each.operator = call.operator
        call.exposed = sorted(part for each in work for part in exposed.get(id(each), ()))
        found.append(call)
    return found


def _collective(work: list[Work], issued: Sequence[ProfilerEvent], only_group: str | None) -> TraceCollective:
    about: dict[str, Any] = {}
    # what the kernel says itself is nearest to what ran
    for event in (*issued, work[0].event):
        about |= event.arguments
    names = [
        about.get("Collective name", ""),
        *(event.name for event in reversed(issued)),
        work[0].event.name,
    ]
    op = next((known for name in names if (known := operation_name(str(name)))), _UNNAMED)
    size = about.get("Group size")
    group_size = size if isinstance(size, int) and size > 0 else 2 if only_group else None
    dtype = dtype_of(about.get("dtype") or next(iter(about.get("Input type") or [""]), ""))
    elements = _array_elements(op, about, issued, work, group_size)
    size_bytes = None if dtype is None or elements is None else elements * item_bytes(dtype)
    sequence = about.get("Seq")
    return TraceCollective(
        op,
        union(each.event.interval for each in work),
        group=_group(about) or only_group,
        process_group=about.get("Process Group Name"),
        group_size=group_size,
        dtype=dtype,
        bytes=size_bytes,
        sequence=sequence if isinstance(sequence, int) else None,
    )


def _array_elements(
    op: str, about: Mapping[str, Any], issued: Sequence[ProfilerEvent], work: Sequence[Work], size: int | None
) -> int | None:
    """Elements of the full array: the output of an all-gather, else the input."""
    elements = about.get("Out msg nelems" if op in ("all_gather", "recv") else "In msg nelems")
    if isinstance(elements, int) and elements > 0:
        return elements
    given = [event.elements for event in (*reversed(issued), work[0].event) if event.elements]
    if not given:
        return None
    if op != "all_gather":
        return given[0]
    return None if size is None else given[0] * size


def _group(about: Mapping[str, Any]) -> str | None:
    ranks = about.get("Process Group Ranks")
    try:
        numbers = json.loads(ranks) if isinstance(ranks, str) else ranks
    except ValueError:
        # a long list is shortened: [0, 1, ..., 127]
        numbers = None
    if isinstance(numbers, list) and numbers and all(isinstance(rank, int) for rank in numbers):
        return ranks_text(sorted(numbers))
    name = about.get("Process Group Name")
    return f"group {name}" if name not in (None, "") else None
