"""The seam of kinds of job: what a trial is for, from the section of a suite to the tasks of a run.

``distbench.core.job.kinds`` lists the kinds with their folders and words. Only what serves one kind alone,
as the gate does measuring, names it.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from distbench.core.case import Case, Measure
from distbench.core.job import Options
from distbench.ipc.trial_files import SKETCH
from distbench.metrics.base import Column, TableColumn, TableSpec
from distbench.plan.tasks import Task
from distbench.suite.sections import Finding
from distbench.system.machine import Machine

if TYPE_CHECKING:
    import numpy as np

    from distbench.analysis.loss_deviation import Expected
    from distbench.analysis.training_curves import CurvePoint
    from distbench.analysis.verdicts import Verdict
    from distbench.ipc.trial_files import Phases, TrialFile
    from distbench.record import Record
    from distbench.strategies.base import Setting
    from distbench.tables.table import Sheet
    from distbench.worker.trainer import Delivery

    Ranks = Callable[[TrialFile, Setting, Phases], Delivery | Iterator[Delivery]]

TRAINING = TableColumn("training", "varchar", "Training of the trial, which may have several.")
STEP = TableColumn("step", "bigint", "Step of that training, from 0 on.")


def training_tables(prefix: str) -> tuple[TableSpec, TableSpec]:
    """Tables ``<prefix>_curve`` and ``<prefix>_tensors``, of kinds that compare trainings step by step."""
    curve = (
        TableColumn("loss", "double", "Loss before the update, over the global batch."),
        TableColumn("grad_norm", "double", "Norm of the whole gradient, before clipping."),
    )
    tensors = (
        TableColumn("of", "varchar", "gradient, parameter, update, buffer or optimizer state."),
        TableColumn("tensor", "varchar", "Name of the tensor."),
        TableColumn("norm", "double", "Its L2 norm."),
        TableColumn(
            "digest",
            "varchar",
            "Hash of its bits, equal for identical ones; before a dash its law.",
        ),
        *(TableColumn(name, "double", "One of the 16 sums of its CountSketch.") for name in SKETCH),
    )
    return (
        TableSpec(f"{prefix}_curve", "One row per training and step.", (TRAINING, STEP, *curve)),
        TableSpec(f"{prefix}_tensors", "One row per training, step and tensor.", (TRAINING, STEP, *tensors)),
    )


class Kind(ABC):
    """A kind of job. A frozen dataclass without fields; what a suite may set are those of ``section``.

    Loading it imports neither torch nor numpy: ``ranks`` is imported in the ranks only, and what judges
    and shows is imported where that is done.
    """

    name: ClassVar[str]
    """The word in ``job.kind`` of a record, and the section of a suite that asks for it."""
    folder: ClassVar[str]
    """Folder of its records in that of a run."""
    section: ClassVar[type[Any]]
    """Frozen dataclass of the section of a suite: a docstring and bounds at each field."""
    options: ClassVar[type[Options]] = Options
    """Frozen dataclass of what its ranks get besides the case; every field has a default."""
    always: ClassVar[bool] = False
    """Whether a suite that leaves the section out asks for it all the same."""
    columns: ClassVar[tuple[Column, ...]] = ()
    """The numbers that its ranks deliver besides those of metrics."""
    tables: ClassVar[tuple[TableSpec, ...]] = ()
    """The tables that its ranks leave besides those of metrics."""
    with_metrics: ClassVar[bool] = False
    """Whether the metrics of the suite take part."""
    trains: ClassVar[bool] = True
    """Whether its ranks train, or need anything else that is built before: initial weights, C++ ops."""
    deterministic: ClassVar[bool] = False
    """Whether its ranks switch on deterministic algorithms; what they call is called again without those that
    torch lacks. Of an iterator only the call itself is."""
    reads_of_others: ClassVar[bool] = False
    """Whether ranks read files that other ranks write, which takes a file system that their nodes share."""
    phases: ClassVar[tuple[str, ...]] = ()
    """The phases of its ranks that have steps, in their order; by default one, called as the kind."""
    deadline: ClassVar[str] = "step"
    """The key of ``limits`` for one step of these phases."""
    ranks: ClassVar[str] = ".ranks:run"
    """``module:function``, relative to the plug-in's folder, that each rank calls."""
    order: ClassVar[int] = 50
    """Its place in a run and in reports; lower comes first."""
    later: ClassVar[str] = ""
    """What ``plan`` says of the trials that follow up on others, if the kind has such."""
    unasked: ClassVar[str] = ""
    """Advice beside a recommendation for a case that has no verdict of this kind."""

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls) and not cls.phases:
            cls.phases = (cls.name,)

    @abstractmethod
    def tasks(self, section: Any, cases: Sequence[Case], machine: Machine) -> Iterable[Task]:
        """Trials of *cases* that *section* asks for, in the order of launch."""

    def judge(self, settings: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Verdict]:
        """Verdict on each case that *records* of this kind are about, by case id.

        *settings* is the section of the suite as the run stored it. A kind that judges nothing, like
        ``measure``, leaves this out.
        """
        return {}

    def expected_losses(self, records: Sequence[Record]) -> dict[str, Expected]:
        """Losses, by case id, of trainings in *records* of this kind that the timed trials must have too.

        A kind that trains no such reference leaves this out.
        """
        return {}

    def moved_losses(self, records: Sequence[Record]) -> dict[str, Sequence[np.ndarray]]:
        """Losses (steps,), by case id, of trainings in *records* from weights that were moved by rounding.

        They tell how far rounding leads the timed trials. A kind that moves no weights leaves this out.
        """
        return {}

    def moving(self, section: Any, cases: Sequence[Case]) -> Iterable[Task]:
        """Trials that have ``moved_losses`` of *cases*. Empty where a kind, or *section*, makes none."""
        return ()

    def follow_up(self, section: Any, cases: Sequence[Case], records: Sequence[Record]) -> Iterable[Task]:
        """Trials of *cases* that *records*, all that a run has made so far, give reason for.

        Asked again after these have ended; those that were made already are not made again.
        """
        return ()

    def run_json(self, records: Sequence[Record]) -> dict[str, Any]:
        """Keys that ``show --json`` has of the *records* of this kind as a whole, besides the verdicts."""
        return {}

    def comparison(self, before: Sequence[Record], after: Sequence[Record]) -> Sheet | None:
        """What ``compare`` shows of the records of this kind of two runs; None: nothing.

        Asked only if both have some.
        """
        return None

    def curve(self, record: Record) -> tuple[str, Sequence[CurvePoint]]:
        """What tells a trial from others of its case, such as ``seed 3``, and its curve; by default none.

        Experiment trackers show it.
        """
        return "", ()

    def predicted(self, task: Task) -> float | None:
        """Seconds that *task* will take, by what is known before it is launched; None: nothing is known."""
        return None

    def steps(self, task: Task, measure: Measure) -> int:
        """Steps, one after another, that *task* has time for, in a run that measures as *measure* says.

        1 where ``predicted`` tells what it takes, or where it trains nothing to speak of.
        """
        return 1

    def foretold(self, tasks: Sequence[Task]) -> str:
        """What ``plan`` says of *tasks* of this kind beside their number; by default nothing."""
        return ""

    def problems(self, section: Any, cases: Sequence[Case]) -> list[Finding]:
        """Mistakes in *section* that show only beside the cases of the suite."""
        return []

    def is_idle(self, section: Any) -> bool:
        """Whether *section* asks for no trial at all."""
        return False

    def in_rank(self) -> Ranks:
        """What each rank calls: trial, setting and phases in, what the rank delivers out.

        An iterator delivers ever more: if a rank fails later, all that every rank had delivered stands.
        """
        module, _, function = self.ranks.partition(":")
        called: Ranks = getattr(importlib.import_module(module, type(self).__module__), function)
        return called


PLUGIN_BASE = Kind
