"""``probe``: the rates of this machine that decide step times, with all ranks busy at the same time."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from distbench.core.bounds import Bound
from distbench.core.case import NATIVE_ENGINE, Batch, Case, LoaderConfig, PluginChoice
from distbench.core.columns import TableColumn, TableSpec
from distbench.core.grouping import group_by
from distbench.core.job import JobKind, JobOptions, JobSpec, PlannedTrial
from distbench.core.machine import Machine
from distbench.prediction.probed_rates import rates_key
from distbench.prediction.recorded_layouts import LAYOUT_TABLE

_MAX_SIZES = 4
"""Micro-batches that are timed: two and a third one show whether time grows in proportion."""
RATES = TableSpec(
    "machine_rates",
    "One row per rate of the machine that was measured, or could not be: all ranks work at the same time, "
    "and the slowest counts.",
    (
        TableColumn(
            "rate",
            "varchar",
            "forward_backward: of a micro-batch, without communication; update: of the optimizer; matmul: of "
            "two square matrices in the dtype of computation; copy: in the memory of the device; collective: "
            "alone; collective_in_step: step time added per call by a collective after each layer, forward "
            "and backward.",
        ),
        TableColumn("op", "varchar", "Collective, as nccl-tests names it; null: none."),
        TableColumn(
            "group", "varchar", "Its ranks: all, node or between. A word of SQL: write it in quotes."
        ),
        TableColumn("group_size", "bigint", "Ranks of the group."),
        TableColumn("nodes", "bigint", "Nodes that these ranks are on."),
        TableColumn("samples", "bigint", "Samples of the micro-batch of each rank."),
        TableColumn(
            "bytes",
            "bigint",
            "Of a collective its full array, of an update the updated parameters, of a matmul its three "
            "matrices, of a copy what is read and written.",
            "B",
        ),
        TableColumn(
            "seconds",
            "double",
            "Median over repetitions, each on its slowest rank; null: nothing was measured.",
            "s",
        ),
        TableColumn(
            "relative_sd",
            "double",
            "Spread of a single repetition: the standard deviation of the logarithm of its seconds; of "
            "collective_in_step the standard deviation of its seconds over their median.",
        ),
        TableColumn("repetitions", "bigint", "Repetitions; of collective_in_step pairs with and without it."),
        TableColumn("reason", "varchar", "Reason why the row has no usable rate; empty: it has."),
    ),
)

LAYOUT = TableSpec(
    LAYOUT_TABLE,
    "One row per fact about a model whose sizes only its own code knows, for the theory of strategies.",
    (
        TableColumn("field", "varchar", "Fact: parameters (the shape of each), tied, frozen, layers, ..."),
        TableColumn("value", "varchar", "The fact, as JSON; null: it could not be read."),
        TableColumn("reason", "varchar", "Reason why the model could not be read; empty: it was."),
    ),
)


@dataclass(frozen=True)
class ProbeSection:
    """Rates of this machine, which predictions of step times start from."""

    seconds: Annotated[float, Bound(1, 3600)] = 45.0
    """Maximum seconds of measurements on each number of devices, besides the build and first calls; a large
    model can exceed them, as it is timed at least three times."""


@dataclass(frozen=True)
class ProbeOptions(JobOptions):
    """Options for the ranks, besides the case that stands for those with the same rates."""

    seconds: float = 45.0
    samples: tuple[int, ...] = ()
    """Samples of the micro-batches to time, in ascending order."""
    cases: tuple[str, ...] = ()
    """Ids of the suite's cases that the rates are about."""


@dataclass(frozen=True)
class ProbeJob(JobKind):
    """Time the parts of a step on all ranks at once: the model, its update, copies and collectives.

    Collectives are timed alone, and after each layer of a training: there they take longer.
    """

    name: ClassVar[str] = "probe"
    folder: ClassVar[str] = "probe"
    section: ClassVar[type] = ProbeSection
    options: ClassVar[type[JobOptions]] = ProbeOptions
    tables: ClassVar[tuple[TableSpec, ...]] = (RATES, LAYOUT)
    order: ClassVar[int] = 85

    def planned_trials(
        self, section: ProbeSection, cases: Sequence[Case], machine: Machine
    ) -> list[PlannedTrial]:
        """Plan a trial for each group of cases with the same rates: they differ in how they use them."""
        groups = group_by(cases, rates_key).values()
        trial_options = [
            ProbeOptions("case", seconds=section.seconds, samples=_samples(same), cases=tuple(_ids(same)))
            for same in groups
        ]
        probed = [
            _probed_case(same[0], each.samples) for same, each in zip(groups, trial_options, strict=True)
        ]
        return [
            PlannedTrial(case, job=JobSpec(self.name, each))
            for case, each in zip(_with_unique_names(probed), trial_options, strict=True)
        ]

    def predicted_seconds(self, task: PlannedTrial) -> float:
        return task.job.options_as(ProbeOptions).seconds


def _ids(cases: Sequence[Case]) -> list[str]:
    return [case.id for case in cases]


def _samples(cases: Sequence[Case]) -> tuple[int, ...]:
    """Samples of the micro-batches to time for *cases*, in ascending order: from 1 to the largest one.

    Besides micro-batches, the share of a rank counts where ranks that split a model share samples.
    """
    used = sorted({share for case in cases for share in (case.batch.micro_batch_size, _rank_share(case))})
    sizes = {1, used[0], used[len(used) // 2], used[-1]}
    if len(sizes) < _MAX_SIZES - 1:
        sizes.add(max(1, used[-1] // 2))
    while len(sizes) < _MAX_SIZES - 1:
        sizes.add(2 * max(sizes))
    return tuple(sorted(sizes))


def _rank_share(case: Case) -> int:
    """Samples of a micro-batch over the ranks that work on it: at least 1."""
    batch = case.batch
    return max(1, batch.global_batch_size // (batch.gradient_accumulation_steps * case.world_size))


def _probed_case(case: Case, samples: Sequence[int]) -> Case:
    """Case that stands for all with the rates of *case*: plain data parallelism, with the largest batch."""
    name = "ddp" if case.world_size > 1 else "single"
    largest = samples[-1]
    return dataclasses.replace(
        case,
        name="/".join(["probe", f"ws{case.world_size}", *_name_parts(case)]),
        label="probe",
        strategy=PluginChoice(name),
        batch=Batch(largest * case.world_size, largest, 1),
        loader=LoaderConfig(),
        engine=NATIVE_ENGINE,
    )


def _name_parts(case: Case) -> list[str]:
    settings = {"recompute": case.activation_checkpointing, "compile": case.compile}
    changed = [f"{key}-{value}" for key, value in settings.items() if value != "none"]
    return [case.workload.name, case.precision.label, *changed]


def _with_unique_names(cases: Sequence[Case]) -> list[Case]:
    """*cases*, with their ids in the names that several have."""
    count = Counter(case.name for case in cases)
    return [
        case if count[case.name] == 1 else dataclasses.replace(case, name=f"{case.name}/{case.id}")
        for case in cases
    ]
