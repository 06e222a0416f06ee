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
from distbench.core.columns import Column, TableColumn, TableSpec, columns_of
from distbench.metrics.base import Metric, NotAvailable, PassContext, TrialData, Values, value_or_reason
from distbench.metrics.disk.probe import BLOCK_BYTES, QUEUE_DEPTH, probe_disk

if TYPE_CHECKING:
    from distbench.strategies.base import Strategy

_COLUMN_OF_DIRECTION = {"read": "disk_read", "written": "disk_written"}
_NO_OFFLOAD = "no training state is offloaded to a disk"
_BYTES_DOC = (
    "as counted by the kernel for storage, not the page cache (/proc/PID/io, {}_bytes), over the timed "
    "steps; all ranks together."
)
_RATE_DOC = (
    f"alone, in blocks of 1 MiB with O_DIRECT, {QUEUE_DEPTH} in flight (DeepSpeed's sizes), measured by "
    "the first rank of each node before the warm-up, while the others wait; of the slowest node."
)
_TABLE = TableSpec(
    "disk",
    (
        "Two rows per node whose ranks offload to a disk: its throughput alone, measured by the first rank "
        "of the node."
    ),
    (
        TableColumn("way", "varchar", "read or written."),
        TableColumn("bytes", "bigint", "Bytes that were moved.", "B"),
        TableColumn("seconds", "double", "Time that it took.", "s"),
        TableColumn("block", "bigint", "Bytes of a block.", "B"),
        TableColumn("depth", "bigint", "Blocks in flight."),
        TableColumn("reason", "varchar", "Reason why nothing was moved; null if it was."),
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
        *columns_of("B", "lower", "sum")(
            disk_read="Bytes read from disks in a step, " + _BYTES_DOC.format("read"),
            disk_written="Bytes written to disks in a step, " + _BYTES_DOC.format("write"),
        ),
        *columns_of("B", None, "first")(
            disk_read_theory="Upper bound on the bytes that all ranks read in a step, by theory: tensors "
            "of less than 1 MiB stay in memory (Rajbhandari et al. 2021, arXiv:2104.07857, section 5).",
            disk_written_theory="Upper bound on the bytes that all ranks write in a step, likewise.",
        ),
        *columns_of("B/s", "higher", "first")(
            disk_read_rate="Read throughput of the disk " + _RATE_DOC,
            disk_written_rate="Write throughput of the disk " + _RATE_DOC,
        ),
        Column(
            "disk_least_s",
            "s",
            "lower",
            "first",
            "Minimum time of a step for its disk traffic: bytes read and written over the throughput "
            "of the disk, one after the other; of the node with the most.",
        ),
    )

    def start(self, context: PassContext) -> Any:
        if not context.strategy.offload_folder:
            return None
        if context.pass_name == "time":
            return _io_counters()
        if context.nodes.index(context.nodes[context.rank]) == context.rank:
            context.tables["disk"] = _rows(Path(context.strategy.offload_folder))
        return None

    def values(self, context: PassContext, state: Any) -> Values:
        if context.pass_name == "probe":
            return {}
        if not context.strategy.offload_folder:
            raise NotAvailable(_NO_OFFLOAD)
        steps = len(context.step_times)
        return {
            _COLUMN_OF_DIRECTION[way]: (size - state[way]) / steps for way, size in _io_counters().items()
        }

    def summary(self, trial: TrialData) -> Mapping[str, float | NotAvailable]:
        strategy: Strategy = registry.create_plugin("strategies", trial.case.strategy)
        if not strategy.offload_folder:
            raise NotAvailable(_NO_OFFLOAD)
        theory = strategy.disk_traffic(trial.case, trial.effective["parameters"])
        return {
            **{f"{name}_theory": _theory(theory, way, trial) for way, name in _COLUMN_OF_DIRECTION.items()},
            **{f"{name}_rate": _slowest_rate(trial, way) for way, name in _COLUMN_OF_DIRECTION.items()},
            "disk_least_s": value_or_reason(lambda: max(_min_step_seconds(trial))),
        }


def _io_counters() -> dict[str, int]:
    """Bytes that this process has read from storage and written to it so far."""
    counted = psutil.Process().io_counters()
    return {"read": counted.read_bytes, "written": counted.write_bytes}


def _rows(folder: Path) -> list[dict[str, Any]]:
    try:
        moved = probe_disk(folder)
    except NotAvailable as reason:
        return [{"reason": str(reason)}]
    return [
        {"way": way, **dataclasses.asdict(of_way), "block": BLOCK_BYTES, "depth": QUEUE_DEPTH, "reason": None}
        for way, of_way in moved.items()
    ]


def _theory(theory: Mapping[str, float] | None, way: str, trial: TrialData) -> float | NotAvailable:
    if theory is None:
        return NotAvailable(f"{trial.case.label} has no model of its disk traffic")
    return theory[way] * trial.case.world_size


def _slowest_rate(trial: TrialData, way: str) -> float | NotAvailable:
    return value_or_reason(lambda: min(of_node[way] for of_node in _rates(trial).values()))


def _rates(trial: TrialData) -> dict[int, dict[str, float]]:
    """Bytes per second of each direction, by the rank that probed the disk of its node.

    Raises:
        NotAvailable: a disk could not be probed.
    """
    rates: dict[int, dict[str, float]] = {}
    for row in trial.tables.get("disk", []):
        if row["reason"]:
            raise NotAvailable(row["reason"])
        rates.setdefault(row["rank"], {})[row["way"]] = row["bytes"] / row["seconds"]
    if not rates:
        raise NotAvailable("no disk was probed")
    return rates


def _min_step_seconds(trial: TrialData) -> Iterator[float]:
    """Yield the minimum seconds per step that the disk of each node takes."""
    everybody = range(trial.case.world_size)
    for prober, rates in _rates(trial).items():
        ranks = next((ranks for ranks in trial.nodes.values() if prober in ranks), everybody)
        yield math.fsum(
            _bytes_moved(trial, name, ranks) / rates[way] for way, name in _COLUMN_OF_DIRECTION.items()
        )


def _bytes_moved(trial: TrialData, name: str, ranks: Sequence[int]) -> float:
    """Bytes per step that *ranks* have moved.

    Raises:
        NotAvailable: a rank did not report its bytes.
    """
    sizes = [trial.samples.get(name, [])[rank : rank + 1] for rank in ranks]
    known = [size for of_rank in sizes for each in of_rank for size in each if size is not None]
    if len(known) < len(ranks):
        raise NotAvailable(f"needs {name} of every rank")
    return math.fsum(known)
