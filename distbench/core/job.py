"""Kinds of job, found among the plug-ins, and the trials that they plan.

Suites, plans, records and runs ask ``JobKind``; what its records say is asked of ``analysis.job_results``.
Only what serves one kind alone names it, as the gate names measuring.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from distbench.core import registry
from distbench.core.case import Case, MeasureConfig
from distbench.core.columns import Column, TableSpec
from distbench.core.errors import UsageError, did_you_mean
from distbench.core.machine import Machine
from distbench.core.serialization import decode
from distbench.core.suite_mistakes import Problem

T = TypeVar("T", bound="JobOptions")

MEASURE = "measure"
"""The kind whose trials are the numbers of a case; a suite always has it."""
REFERENCE = "reference"
"""The role of a trial that others of its kind are compared with."""


@dataclass(frozen=True)
class JobOptions:
    """What the ranks of a trial get besides the case; each kind adds fields with defaults of its own."""

    role: str = ""
    """What the trial is to others of its kind, such as ``case`` or ``reference``."""
    of: str = ""
    """Id of the case that the trial is made for; empty: the case that it trains."""
    reference: str = ""
    """Id of the reference that the case is compared with; of a reference its own."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, without the fields that are left empty."""
        plain = dataclasses.asdict(self)
        empty = {field.name for field in dataclasses.fields(self) if field.default in ("", None)}
        return {key: value for key, value in plain.items() if key not in empty or value not in ("", None)}


@dataclass(frozen=True)
class JobSpec:
    """What the ranks of a trial do once they have joined."""

    kind: str = MEASURE
    options: JobOptions = field(default_factory=JobOptions)

    @property
    def provided_reference(self) -> str:
        """Id of the reference whose result this job gives; empty: of none."""
        return self.options.reference if self.options.role == REFERENCE else ""

    def options_as(self, options_type: type[T]) -> T:
        """The options, which are those of *options_type*."""
        assert isinstance(self.options, options_type)
        return self.options

    def to_json(self) -> dict[str, Any]:
        """The job as a record and ``trial.json`` keep it."""
        return {"kind": self.kind, "options": self.options.to_json()}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], source: str) -> JobSpec:
        """The job that ``to_json`` described; of a kind that is not installed only what all kinds share.

        Raises:
            RecordError: the kind is missing, or an option has the wrong type.
        """
        shared = decode(cls, plain, f"{source}: job")
        options = next((kind.options for kind in job_kinds() if kind.name == shared.kind), None)
        if options is None:
            return shared
        return cls(shared.kind, decode(options, plain.get("options", {}), f"{source}: job.options"))


MEASURE_JOB = JobSpec()


@dataclass(frozen=True)
class PlannedTrial:
    """One trial to launch."""

    case: Case
    round: int = 0
    job: JobSpec = MEASURE_JOB
    fallbacks: tuple[Case, ...] = ()
    """Fallback cases, tried in order if it runs out of memory."""
    depends_on: str = ""
    """Case id of an earlier task of the same job whose result this one is compared with."""
    output_file: str = ""
    """File in the run's scratch folder that later tasks read; it ends with the run."""
    input_file: str = ""
    """File in that folder that an earlier task of the same job leaves."""
    problem: str | None = None
    """Why it can't be launched here, for its record."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Unique key within a run; its record has the same."""
        return self.job.kind, self.case.name, self.case.id, self.round

    def candidates(self) -> Iterator[PlannedTrial]:
        """Yield the task itself, then its fallbacks."""
        for case in (self.case, *self.fallbacks):
            yield dataclasses.replace(self, case=case, fallbacks=())


class JobKind(ABC):
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
    options: ClassVar[type[JobOptions]] = JobOptions
    """Frozen dataclass of what its ranks get besides the case; every field has a default."""
    is_default: ClassVar[bool] = False
    """Whether a suite that leaves the section out asks for it all the same."""
    columns: ClassVar[tuple[Column, ...]] = ()
    """The numbers that its ranks deliver besides those of metrics."""
    tables: ClassVar[tuple[TableSpec, ...]] = ()
    """The tables that its ranks leave besides those of metrics."""
    uses_metrics: ClassVar[bool] = False
    """Whether the metrics of the suite take part."""
    trains_model: ClassVar[bool] = True
    """Whether its ranks train, or need anything else that is built before: initial weights, C++ ops."""
    is_deterministic: ClassVar[bool] = False
    """Whether its ranks switch on deterministic algorithms; what they call is called again without those that
    torch lacks. Of an iterator only the call itself is."""
    needs_shared_files: ClassVar[bool] = False
    """Whether ranks read files that other ranks write, which takes a file system that their nodes share."""
    phases: ClassVar[tuple[str, ...]] = ()
    """The phases of its ranks that have steps, in their order; by default one, called as the kind."""
    step_limit_key: ClassVar[str] = "step"
    """The key of ``limits`` for one step of these phases."""
    ranks: ClassVar[str] = ".ranks:run"
    """``module:function``, relative to the plug-in's folder, that each rank calls."""
    order: ClassVar[int] = 50
    """Its place in a run and in reports; lower comes first."""
    follow_up_text: ClassVar[str] = ""
    """What ``plan`` says of the trials that follow up on others, if the kind has such."""
    missing_verdict_advice: ClassVar[str] = ""
    """Advice beside a recommendation for a case that has no verdict of this kind."""

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls) and not cls.phases:
            cls.phases = (cls.name,)

    @abstractmethod
    def planned_trials(self, section: Any, cases: Sequence[Case], machine: Machine) -> Iterable[PlannedTrial]:
        """Trials of *cases* that *section* asks for, in the order of launch."""

    def perturbed_trials(self, section: Any, cases: Sequence[Case]) -> Iterable[PlannedTrial]:
        """Trials of *cases* from weights perturbed by rounding; by default none."""
        return ()

    def predicted_seconds(self, task: PlannedTrial) -> float | None:
        """Seconds that *task* will take, by what is known before it is launched; None: nothing is known."""
        return None

    def sequential_steps(self, task: PlannedTrial, measure: MeasureConfig) -> int:
        """Steps, one after another, that *task* has time for, in a run that measures as *measure* says.

        1 where ``predicted`` tells what it takes, or where it trains nothing to speak of.
        """
        return 1

    def plan_note(self, tasks: Sequence[PlannedTrial]) -> str:
        """What ``plan`` says of *tasks* of this kind beside their number; by default nothing."""
        return ""

    def problems(self, section: Any, cases: Sequence[Case]) -> list[Problem]:
        """Mistakes in *section* that show only beside the cases of the suite."""
        return []

    def is_empty(self, section: Any) -> bool:
        """Whether *section* asks for no trial at all."""
        return False


PLUGIN_BASE = JobKind


def job_kinds() -> tuple[JobKind, ...]:
    """Every kind of job, in the order in which a run makes their trials.

    Raises:
        UsageError: a plug-in can't be imported, or two share a word or a folder.
    """
    return _load_job_kinds(os.environ.get(registry.PLUGIN_PATH_VARIABLE, ""))


def job_kind(name: str) -> JobKind:
    """Kind of job that *name* names, as ``job.kind`` of a record does.

    Raises:
        UsageError: there is none, or a plug-in can't be imported.
    """
    known = {kind.name: kind for kind in job_kinds()}
    if name not in known:
        raise UsageError(f"unknown kind of job {name!r}: {did_you_mean(name, known)}")
    return known[name]


@functools.cache
def _load_job_kinds(_plugin_path: str) -> tuple[JobKind, ...]:
    made: list[JobKind] = [registry.load_plugin("jobs", name)() for name in registry.plugin_names("jobs")]
    names = [word for kind in made for word in dict.fromkeys((kind.name, kind.folder))]
    for word, count in Counter(names).items():
        if count > 1:
            raise UsageError(f"jobs: two plug-ins are called {word!r} or store their records there")
    return tuple(sorted(made, key=lambda kind: (kind.order, kind.name)))
