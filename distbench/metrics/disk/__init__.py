"""``disk``: what offload to a disk moves in each step, beside theory and what the disk gives by itself."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from distbench.core import registry
from distbench.core.columns import Column, TableColumn, TableSpec, alike
from distbench.metrics.base import Absent, Metric, Session, Trial, Values, or_absent
from distbench.metrics.disk.probe import BLOCK, DEPTH, probe

if TYPE_CHECKING:
    from distbench.strategies.base import Strategy

_WAYS = {"read": "disk_read", "written": "disk_written"}
_NONE = "no training state is offloaded to a disk"
_COUNTED = (
    "by the kernel's count (/proc/PID/io, {}_bytes), which is of storage and not of the page cache, over "
    "the timed steps; all ranks together."
)
_GIVES = (
    f"by itself, in blocks of 1 MiB with O_DIRECT, {DEPTH} in flight (DeepSpeed's own sizes), measured by "
    "the first rank of each node before the warm-up, while the others wait; of the slowest node."
)
_TABLE = TableSpec(
    "disk",
    "Two rows a node whose ranks offload to a disk: what it gives by itself. Left by the node's first rank.",
    (
        TableColumn("way", "varchar", "read or written."),
        TableColumn("bytes", "bigint", "Bytes that were moved.", "B"),
        TableColumn("seconds", "double", "Time that it took.", "s"),
        TableColumn("block", "bigint", "Bytes of a block.", "B"),
        TableColumn("depth", "bigint", "Blocks in flight."),
        TableColumn("reason", "varchar", "Why nothing was moved; null if it was."),
    ),
)


@dataclass(frozen=True)
class Disk(Metric):
    """Bytes that offload to a disk moves in a step, beside theory, and the throughput of that disk by itself.

    Where no state is on a disk nothing is read. Measuring the disk by itself takes 1 to 2 s
    before the warm-up, a phase of the trial of its own (``probe``) that is in no column.
    """

    passes = frozenset({"probe", "time"})
    tables = (_TABLE,)
    columns = (
        *alike("B", "lower", "sum")(
            disk_read="Bytes read from disks in a step, " + _COUNTED.format("read"),
            disk_written="Bytes written to disks in a step, " + _COUNTED.format("write"),
        ),
        *alike("B", None, "first")(
            disk_read_theory="Bytes that all ranks read in a step by theory, at most: tensors of less than "
            "1 MiB stay in memory (Rajbhandari et al. 2021, arXiv:2104.07857, section 5).",
            disk_written_theory="Bytes that all ranks write in a step by theory, at most, likewise.",
        ),
        *alike("B/s", "higher", "first")(
            disk_read_rate="What the disk gives to reading " + _GIVES,
            disk_written_rate="What the disk takes of writing " + _GIVES,
        ),
        Column(
            "disk_least_s",
            "s",
            "lower",
            "first",
            "Least time that a step takes for its disk: bytes read and written over the disk's own "
            "throughput, one after the other; of the node that has most.",
        ),
    )

    def start(self, session: Session) -> Any:
        if not session.strategy.disk:
            return None
        if session.pass_ == "time":
            return _counters()
        if session.nodes.index(session.nodes[session.rank]) == session.rank:
            session.tables["disk"] = _rows(Path(session.strategy.disk))
        return None

    def values(self, session: Session, state: Any) -> Values:
        if session.pass_ == "probe":
            return {}
        if not session.strategy.disk:
            raise Absent(_NONE)
        steps = len(session.steps)
        return {_WAYS[way]: (size - state[way]) / steps for way, size in _counters().items()}

    def summary(self, trial: Trial) -> Mapping[str, float | Absent]:
        strategy: Strategy = registry.make("strategies", trial.case.strategy)
        if not strategy.disk:
            raise Absent(_NONE)
        theory = strategy.disk_traffic(trial.case, trial.effective["parameters"])
        return {
            **{f"{name}_theory": _theory(theory, way, trial) for way, name in _WAYS.items()},
            **{f"{name}_rate": _slowest(trial, way) for way, name in _WAYS.items()},
            "disk_least_s": or_absent(lambda: max(_least(trial))),
        }


def _counters() -> dict[str, int]:
    """Bytes that this process has read from storage and written there so far."""
    counted = psutil.Process().io_counters()
    return {"read": counted.read_bytes, "written": counted.write_bytes}


def _rows(folder: Path) -> list[dict[str, Any]]:
    try:
        moved = probe(folder)
    except Absent as reason:
        return [{"reason": str(reason)}]
    return [
        {"way": way, **dataclasses.asdict(of_way), "block": BLOCK, "depth": DEPTH, "reason": None}
        for way, of_way in moved.items()
    ]


def _theory(theory: Mapping[str, float] | None, way: str, trial: Trial) -> float | Absent:
    if theory is None:
        return Absent(f"{trial.case.label} has no theory of what it moves to a disk")
    return theory[way] * trial.case.world_size


def _slowest(trial: Trial, way: str) -> float | Absent:
    return or_absent(lambda: min(of_node[way] for of_node in _rates(trial).values()))


def _rates(trial: Trial) -> dict[int, dict[str, float]]:
    """Bytes a second of each way, by the rank that has probed the disk of its node.

    Raises:
        Absent: a disk could not be probed.
    """
    rates: dict[int, dict[str, float]] = {}
    for row in trial.tables.get("disk", []):
        if row["reason"]:
            raise Absent(row["reason"])
        rates.setdefault(row["rank"], {})[row["way"]] = row["bytes"] / row["seconds"]
    if not rates:
        raise Absent("no disk was probed")
    return rates


def _least(trial: Trial) -> Iterator[float]:
    """Least seconds of a step that the disk of each node takes."""
    everybody = range(trial.case.world_size)
    for prober, rates in _rates(trial).items():
        ranks = next((ranks for ranks in trial.nodes.values() if prober in ranks), everybody)
        yield math.fsum(_moved(trial, name, ranks) / rates[way] for way, name in _WAYS.items())


def _moved(trial: Trial, name: str, ranks: Sequence[int]) -> float:
    """Bytes of a step that *ranks* have moved.

    Raises:
        Absent: one of them did not say.
    """
    sizes = [trial.samples.get(name, [])[rank : rank + 1] for rank in ranks]
    known = [size for of_rank in sizes for each in of_rank for size in each if size is not None]
    if len(known) < len(ranks):
        raise Absent(f"needs {name} of every rank")
    return math.fsum(known)
