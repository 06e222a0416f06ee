"""Job kinds (plug-ins), job options, and the trials that they plan.

Suites, plans, records and runs use ``JobKind``; ``analysis.job_results`` interprets its records. Only code
that serves a single kind names it, as the gate names measuring.
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
from distbench.core.case import Case
from distbench.core.columns import Column, TableSpec
from distbench.core.errors import UsageError, did_you_mean
from distbench.core.machine import Machine
from distbench.core.measurement import MeasureConfig
from distbench.core.serialization import decode
from distbench.core.suite_mistakes import Problem

T = TypeVar("T", bound="JobOptions")

MEASURE = "measure"
"""Kind whose trials measure a case; every suite has it."""
REFERENCE = "reference"
"""Role of a trial that others of its kind are compared with."""


@dataclass(frozen=True)
class JobOptions:
    """Options of a job, given to the ranks beside the case; each kind adds fields with defaults."""

    role: str = ""
    """Role of the trial among those of its kind, such as ``case`` or ``reference``."""
    of: str = ""
    """Id of the case that the trial is made for; empty: the case that it trains."""
    reference: str = ""
    """Id of the reference that the case is compared with; for a reference, its own id."""

    def to_json(self) -> dict[str, Any]:
        """The options as plain JSON types, without fields that are left empty."""
        plain = dataclasses.asdict(self)
        empty = {field.name for field in dataclasses.fields(self) if field.default in ("", None)}
        return {key: value for key, value in plain.items() if key not in empty or value not in ("", None)}


@dataclass(frozen=True)
class JobSpec:
    """Kind and options of a trial's job."""

    kind: str = MEASURE
    options: JobOptions = field(default_factory=JobOptions)

    @property
    def provided_reference(self) -> str:
        """Id of the reference that this job provides; empty: it provides none."""
        return self.options.reference if self.options.role == REFERENCE else ""

    def options_as(self, options_type: type[T]) -> T:
        """The options, typed as *options_type*."""
        assert isinstance(self.options, options_type)
        return self.options

    def to_json(self) -> dict[str, Any]:
        """The job as a record and ``trial.json`` keep it."""
        return {"kind": self.kind, "options": self.options.to_json()}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], source: str) -> JobSpec:
        """Job from the output of ``to_json``; for a kind that is not installed, only the shared fields.

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
    """Reason why it can't be launched here, for its record; None if it can."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Unique key within a run; its record has the same."""
        return self.job.kind, self.case.name, self.case.id, self.round

    def candidates(self) -> Iterator[PlannedTrial]:
        """Yield the task itself, then its fallbacks."""
        for case in (self.case, *self.fallbacks):
            yield dataclasses.replace(self, case=case, fallbacks=())


class JobKind(ABC):
    """A kind of job: a frozen dataclass without fields; a suite sets the fields of ``section``.

    Loading it imports neither torch nor numpy: only ranks import ``ranks``, and the code that judges and
    shows results is imported where it is used.
    """

    name: ClassVar[str]
    """The word in ``job.kind`` of a record, and the section of a suite that asks for it."""
    folder: ClassVar[str]
    """Folder of its records inside the folder of a run."""
    section: ClassVar[type[Any]]
    """Frozen dataclass of the section of a suite: a docstring and bounds at each field."""
    options: ClassVar[type[JobOptions]] = JobOptions
    """Frozen dataclass of its job options; every field has a default."""
    is_default: ClassVar[bool] = False
    """True if a suite without the section requests the job as well."""
    columns: ClassVar[tuple[Column, ...]] = ()
    """Columns that its ranks report besides those of metrics."""
    tables: ClassVar[tuple[TableSpec, ...]] = ()
    """Tables that its ranks report besides those of metrics."""
    uses_metrics: ClassVar[bool] = False
    """True if its trials use the metrics of the suite."""
    trains_model: ClassVar[bool] = True
    """True if its ranks train, or need other prior builds: initial weights, C++ ops."""
    is_deterministic: ClassVar[bool] = False
    """True if its ranks use deterministic algorithms. If torch lacks one, the function of ``ranks`` is called
    again with non-deterministic ones allowed; for an iterator this covers only the call itself."""
    needs_shared_files: ClassVar[bool] = False
    """True if ranks read files of other ranks, which requires a file system that their nodes share."""
    phases: ClassVar[tuple[str, ...]] = ()
    """Phases of its ranks that have steps, in order; by default one, named as the kind."""
    step_limit_key: ClassVar[str] = "step"
    """Key of ``limits`` for one step of these phases."""
    ranks: ClassVar[str] = ".ranks:run"
    """``module:function``, relative to the plug-in's folder, that each rank calls."""
    order: ClassVar[int] = 50
    """Sort key in a run and in reports; lower comes first."""
    follow_up_text: ClassVar[str] = ""
    """Text of ``plan`` about trials that follow up on others, if the kind has any."""
    missing_verdict_advice: ClassVar[str] = ""
    """Advice beside a recommendation for a case that has no verdict of this kind."""

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls) and not cls.phases:
            cls.phases = (cls.name,)

    @abstractmethod
    def planned_trials(self, section: Any, cases: Sequence[Case], machine: Machine) -> Iterable[PlannedTrial]:
        """Trials of *cases* that *section* requests, in the order of launch."""

    def perturbed_trials(self, section: Any, cases: Sequence[Case]) -> Iterable[PlannedTrial]:
        """Trials of *cases* from weights perturbed by rounding; by default none."""
        return ()

    def predicted_seconds(self, task: PlannedTrial) -> float | None:
        """Predicted duration of *task* in seconds, before it is launched; None: unknown."""
        return None

    def sequential_steps(self, task: PlannedTrial, measure: MeasureConfig) -> int:
        """Number of sequential steps that *task* has time for, in a run that measures by *measure*.

        1 if ``predicted_seconds`` gives its duration, or if it trains next to nothing.
        """
        return 1

    def plan_note(self, tasks: Sequence[PlannedTrial]) -> str:
        """Text of ``plan`` about *tasks* of this kind besides their number; empty by default."""
        return ""

    def problems(self, section: Any, cases: Sequence[Case]) -> list[Problem]:
        """Mistakes in *section* that depend on the cases of the suite."""
        return []

    def is_empty(self, section: Any) -> bool:
        """True if *section* requests no trial at all."""
        return False


PLUGIN_BASE = JobKind


def job_kinds() -> tuple[JobKind, ...]:
    """All job kinds, in the order in which a run launches their trials.

    Raises:
        UsageError: a plug-in can't be imported, or two share a word or a folder.
    """
    return _load_job_kinds(os.environ.get(registry.PLUGIN_PATH_VARIABLE, ""))


def job_kind(name: str) -> JobKind:
    """Job kind called *name*, as in ``job.kind`` of a record.

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
            raise UsageError(
                f"jobs: two plug-ins have the name {word!r} or store their records in that folder"
            )
    return tuple(sorted(made, key=lambda kind: (kind.order, kind.name)))
