"""``links``: what the links between ranks can do, by operation, size, dtype and group of ranks.

Definitions of nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): the size of a message is that of
the full array, algbw is size over time, and busbw is algbw times a factor that makes it comparable with the
speed of the hardware, whatever the operation and the number of ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, get_args

from distbench.core.bounds import Bound, Count, Positive
from distbench.core.case import Batch, Case, Device, OptimizerConfig, PluginChoice, PrecisionConfig
from distbench.core.columns import Column, TableColumn, TableSpec
from distbench.core.dtypes import Dtype
from distbench.core.grouping import group_by
from distbench.core.job import JobKind, JobOptions, JobSpec, PlannedTrial
from distbench.core.machine import Machine
from distbench.core.rank_groups import GroupKind
from distbench.core.suite_mistakes import Problem
from distbench.jobs.links.sizes import message_sizes

CollectiveName = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]

_GROUP_DOCS: dict[GroupKind, str] = {
    "all": "among all ranks",
    "node": "among the ranks of each node, all nodes at once, by the slowest",
    "between": "among one rank of each node",
}
_TABLE = TableSpec(
    "collective_times",
    "One row per operation, dtype, message size and group of ranks that was measured, or could not be.",
    (
        TableColumn("op", "varchar", "Operation, as nccl-tests names it."),
        TableColumn("dtype", "varchar", "Dtype of the elements."),
        TableColumn("group", "varchar", "all, node or between. A word of SQL: write it in quotes."),
        TableColumn("ranks", "varchar", "Global ranks of the group, with commas."),
        TableColumn("group_size", "bigint", "Ranks of the group."),
        TableColumn("nodes", "bigint", "Nodes that these ranks are on."),
        TableColumn("bytes", "bigint", "Size of the full array; null: nothing was measured.", "B"),
        TableColumn("count", "bigint", "Elements as nccl-tests counts: of the array, or of a rank's share."),
        TableColumn("iterations", "bigint", "Timed calls."),
        TableColumn("seconds", "double", "Mean time of a call on the rank that took longest.", "s"),
        TableColumn("fastest_s", "double", "Shortest call, each timed on its slowest rank.", "s"),
        TableColumn("slowest_s", "double", "Longest call.", "s"),
        TableColumn("algbw", "double", "bytes over seconds.", "B/s"),
        TableColumn("busbw", "double", "algbw times the factor of the operation.", "B/s"),
        TableColumn("wrong", "bigint", "Elements with a wrong result on all ranks; null: not checked."),
        TableColumn("reason", "varchar", "Reason why nothing was measured; empty: it was."),
    ),
)


def busbw_column(op: str, group: str) -> str:
    """Column with the busbw of *op* in *group*."""
    return f"{op}_busbw" if group == "all" else f"{op}_{group}_busbw"


def _columns() -> Iterator[Column]:
    for group, op in itertools.product(get_args(GroupKind), get_args(CollectiveName)):
        doc = (
            f"Bus bandwidth of {op} {_GROUP_DOCS[group]}, as nccl-tests defines it, at the largest size and "
            "in the first dtype of the suite."
        )
        yield Column(busbw_column(op, group), "B/s", "higher", "first", doc)


@dataclass(frozen=True)
class CollectivesSection:
    """Bandwidth and latency of collective operations, on each number of devices."""

    operations: tuple[CollectiveName, ...] = get_args(CollectiveName)
    """Operations, as in nccl-tests; send_recv is a ring: each rank sends to the next one."""
    sizes: str | tuple[int | str, ...] = "auto"
    """Sizes of messages: a range such as 8KiB..64MiB, or a list. auto: 1KiB..16MiB, on GPUs 1KiB..256MiB."""
    factor: Annotated[int, Bound(2, 1024)] = 4
    """Ratio of each size of a range to the previous one."""
    dtypes: tuple[Dtype, ...] = ("fp32",)
    """Dtypes of the elements."""
    groups: tuple[GroupKind, ...] = get_args(GroupKind)
    """all: all ranks; node: the ranks of each node, on all nodes at once; between: one rank of each node."""
    warmup: Annotated[int, Bound(1, 10_000)] = 5
    """Calls before those that are timed, if they fit into the seconds; at least one."""
    iterations: Annotated[int, Bound(1, 1_000_000)] = 20
    """Timed calls, if they fit into the seconds; at least one."""
    seconds: Positive = 1.0
    """Maximum seconds for the timed calls of one measurement, and again for its warm-up."""
    check: bool = True
    """Check every element of the result of each operation, dtype, size and group, before it is timed."""
    trials: Count = 3
    """Launches for each number of devices; the launch is the unit of statistics."""


@dataclass(frozen=True)
class CollectivesOptions(JobOptions):
    """Options for the ranks, besides the number of devices."""

    operations: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    """Message sizes in bytes."""
    dtypes: tuple[str, ...] = ()
    groups: tuple[GroupKind, ...] = ()
    warmup: int = 1
    iterations: int = 1
    seconds: float = 1.0
    check: bool = True
    cases: tuple[str, ...] = ()
    """Ids of the suite's cases on the same number of devices, which the results are about."""


@dataclass(frozen=True)
class CollectivesJob(JobKind):
    """Bandwidth of the links between ranks, in nccl-tests' definitions. Nothing is trained."""

    name: ClassVar[str] = "collectives"
    folder: ClassVar[str] = "collectives"
    section: ClassVar[type] = CollectivesSection
    options: ClassVar[type[JobOptions]] = CollectivesOptions
    columns: ClassVar[tuple[Column, ...]] = tuple(_columns())
    tables: ClassVar[tuple[TableSpec, ...]] = (_TABLE,)
    trains_model: ClassVar[bool] = False
    order: ClassVar[int] = 80

    def planned_trials(
        self, section: CollectivesSection, cases: Sequence[Case], machine: Machine
    ) -> list[PlannedTrial]:
        """Plan trials for each number of devices, once for all its cases: strategies do not affect links."""
        by_size = group_by((case for case in cases if case.world_size > 1), lambda case: case.world_size)
        return [
            PlannedTrial(
                _placeholder_case(size, same[0].device), number, JobSpec(self.name, _options(section, same))
            )
            for number in range(section.trials)
            for size, same in by_size.items()
        ]

    def problems(self, section: CollectivesSection, cases: Sequence[Case]) -> list[Problem]:
        findings = [
            Problem((self.name, key), "empty; list at least one", "[]")
            for key in ("operations", "dtypes", "groups")
            if not getattr(section, key)
        ]
        try:
            message_sizes(section.sizes, section.factor, "cpu")
        except ValueError as error:
            shown = section.sizes if isinstance(section.sizes, str) else list(section.sizes)
            findings.append(Problem((self.name, "sizes"), str(error), shown))
        if cases and all(case.world_size == 1 for case in cases):
            findings.append(
                Problem(
                    (self.name,),
                    "all cases run on one device, so there is nothing to measure; add larger world sizes",
                )
            )
        return findings


def _options(section: CollectivesSection, cases: Sequence[Case]) -> CollectivesOptions:
    return CollectivesOptions(
        role="case",
        operations=tuple(dict.fromkeys(section.operations)),
        sizes=message_sizes(section.sizes, section.factor, cases[0].device),
        dtypes=tuple(dict.fromkeys(section.dtypes)),
        groups=tuple(dict.fromkeys(section.groups)),
        warmup=section.warmup,
        iterations=section.iterations,
        seconds=section.seconds,
        check=section.check,
        cases=tuple(case.id for case in cases),
    )


def _placeholder_case(world_size: int, device: Device) -> Case:
    """Case that stands for the collectives on *world_size* devices: the same in all suites.

    A record needs a case, and nothing is trained here: model, data, strategy and threads are fixed, so the
    collectives of two suites have one id, and one history.
    """
    return Case(
        name=f"collectives/ws{world_size}",
        label="collectives",
        strategy=PluginChoice("ddp"),
        workload=PluginChoice("mlp"),
        data=PluginChoice("digits"),
        world_size=world_size,
        device=device,
        batch=Batch(world_size, 1, 1),
        optimizer=OptimizerConfig(),
        precision=PrecisionConfig(),
        activation_checkpointing="none",
        threads=1,
        seed=0,
    )
