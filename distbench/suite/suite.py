"""A suite: all settings with defaults, and the place of each value in the file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distbench.core import registry
from distbench.core.case import Case, PluginChoice
from distbench.core.errors import SuiteError, SuiteMistake
from distbench.core.job import MEASURE, job_kind, job_kinds
from distbench.core.measurement import MeasureConfig, SuiteLimits
from distbench.core.suite_mistakes import Problem
from distbench.suite.cells import CaseFilter, StrategyVariant, SuiteAxis
from distbench.suite.cost import DeviceCost
from distbench.suite.cross_checks import ENVIRONMENTS_KEY, unknown_environments, unused_optimizer_keys
from distbench.suite.gate import GateRules
from distbench.suite.overrides import Overrides, apply_overrides
from distbench.suite.parser import SuiteParser
from distbench.suite.sections import to_json_dict
from distbench.suite.variables import ENV_KEY
from distbench.suite.work import RawMapping, fill_work_defaults
from distbench.suite.yaml_reader import SourceMap, parse_suite, read_suite_text


@dataclass(frozen=True)
class Suite:
    """A suite, checked as far as possible without knowing the machine."""

    name: str
    description: str
    device: str
    """auto, cpu or cuda."""
    world_sizes: tuple[int, ...] | None
    """None: auto, from the machine."""
    strategies: tuple[StrategyVariant, ...]
    work: RawMapping
    """Work of every case, in normal form and without the axes."""
    axes: tuple[SuiteAxis, ...]
    include: tuple[CaseFilter, ...]
    exclude: tuple[CaseFilter, ...]
    only: tuple[str, ...]
    """Globs on the label or name; empty: all."""
    environments: Mapping[str, str]
    """Name of each other Python environment -> its absolute path."""
    limits: SuiteLimits
    jobs: Mapping[str, Any]
    """Word of a kind of job -> its section; kinds that are not requested are missing."""
    gate: GateRules
    """Allowed changes between two arms, and how certain a verdict must be."""
    cost: DeviceCost | None
    """Price of a device; None: not given in the suite."""
    launcher: PluginChoice
    metrics: tuple[PluginChoice, ...]
    file: str
    """As given on the command line; empty for a suite read from a run."""
    text: str
    """The suite as the user wrote it."""
    source_map: SourceMap = field(compare=False, repr=False)
    tree: RawMapping = field(compare=False, repr=False)
    """The suite as read, with overrides applied."""

    @property
    def measure(self) -> MeasureConfig:
        """Settings of the measurement."""
        section: MeasureConfig = self.jobs[MEASURE]
        return section

    @property
    def variables(self) -> set[str]:
        """Names of the environment variables that any case has by ``env``."""
        axes = [*self.axes, *(axis for part in self.include for axis in part.axes)]
        of_env = [axis for axis in axes if axis.path[0] == ENV_KEY]
        listed = [value for axis in of_env if len(axis.path) == 1 for value in axis.values]
        sections = [self.work.get(ENV_KEY, {}), *listed]
        return {name for each in sections for name in each} | {
            axis.path[1] for axis in of_env if len(axis.path) > 1
        }

    def with_job(self, word: str, section: Any = None) -> Suite:
        """A copy with *section* for the kind of job *word*; None: its defaults."""
        jobs = {**self.jobs, word: job_kind(word).section() if section is None else section}
        ordered = {kind.name: jobs[kind.name] for kind in job_kinds() if kind.name in jobs}
        return dataclasses.replace(self, jobs=ordered)

    def to_resolved(self) -> dict[str, Any]:
        """The suite with all defaults, as plain JSON that is a suite again."""
        axes = {".".join(axis.path): list(axis.values) for axis in self.axes}
        return {
            "name": self.name,
            "description": self.description,
            **fill_work_defaults(self._work_with_data()),
            **_whole(axes),
            "strategies": [strategy.to_yaml() for strategy in self.strategies],
            "world_sizes": "auto" if self.world_sizes is None else list(self.world_sizes),
            "device": self.device,
            "axes": {key: values for key, values in axes.items() if key not in _whole(axes)},
            "include": self.tree.get("include") or [],
            "exclude": self.tree.get("exclude") or [],
            "only": list(self.only),
            **({ENVIRONMENTS_KEY: dict(self.environments)} if self.environments else {}),
            "limits": to_json_dict(self.limits),
            **{kind.name: _plain(self.jobs.get(kind.name)) for kind in job_kinds()},
            "gate": self.gate.to_resolved(),
            # left out if unset, for versions that do not know the key
            **({"cost": dataclasses.asdict(self.cost)} if self.cost else {}),
            "launcher": self.launcher.to_yaml(),
            "metrics": [metric.to_yaml() for metric in self.metrics],
        }

    def _work_with_data(self) -> RawMapping:
        axes = [*self.axes, *(axis for part in self.include for axis in part.axes)]
        if "data" in self.work or ("workload",) in {axis.path for axis in axes}:
            return self.work
        ((workload, options),) = self.work["workload"].items()
        return {
            **self.work,
            "data": {registry.load_plugin("workloads", workload).default_data_for(options): {}},
        }

    @classmethod
    def from_resolved(cls, data: Mapping[str, Any], overrides: Overrides | None = None) -> Suite:
        """Parse the suite that ``to_resolved`` returned, with *overrides*.

        Raises:
            SuiteError: a plug-in no longer exists or has other options now, or *overrides* are invalid.
        """
        axes = data.get("axes", {})
        # it names every key of its time; before ``initial_weights`` the weights were the constructor's
        tree = {"initial_weights": Case.initial_weights, **data, **_whole(axes)}
        # earlier versions kept whole sections as axes
        tree["axes"] = {key: values for key, values in axes.items() if key not in _whole(axes)}
        places = SourceMap("the suite of the run")
        if wrong := apply_overrides(tree, places, overrides or Overrides()):
            raise SuiteError(wrong)
        return cls.from_tree(tree, places)

    @classmethod
    def from_tree(cls, tree: RawMapping, places: SourceMap, *, file: str = "", text: str = "") -> Suite:
        """Parse the top-level mapping *tree* of a suite.

        Raises:
            SuiteError: all its mistakes.
        """
        reader = SuiteParser(tree)
        work, axes = reader.axes.parse_work()
        include, exclude = (reader.axes.parse_case_filters(key, work, axes) for key in ("include", "exclude"))
        known = reader.parse_environments(file)
        reader.problems += unknown_environments(known, work, axes, [*include, *exclude])
        suite = cls(
            name=reader.top.name or Path(file).stem or "unnamed",
            description=reader.top.description,
            device=reader.top.device,
            strategies=reader.parse_strategies(),
            work=work,
            axes=axes,
            include=include,
            exclude=exclude,
            environments=known,
            world_sizes=reader.parse_world_sizes(),
            only=tuple(reader.top.only),
            limits=reader.parse_limits(),
            jobs=reader.parse_jobs(),
            gate=reader.parse_gate(),
            cost=reader.parse_cost(),
            launcher=reader.parse_launcher(),
            metrics=reader.parse_metrics(),
            file=file,
            text=text,
            source_map=places,
            tree=tree,
        )
        jobs = suite.jobs.items()
        if not reader.problems and all(job_kind(word).is_empty(section) for word, section in jobs):
            others = [kind.name for kind in job_kinds() if kind.name not in suite.jobs]
            message = f"nothing to run: set it above 0, or set one of {', '.join(others)}"
            reader.problems.append(Problem((MEASURE, "trials"), message, 0))
        if reader.problems:
            raise SuiteError(locate_problems(reader.problems, places))
        return suite


def load_suite(file: str | Path, overrides: Overrides | None = None, *, is_stored: bool = False) -> Suite:
    """Load the suite in *file*, with *overrides*; *is_stored*: of a run that has begun.

    Raises:
        SuiteError: all mistakes in either, each with its place.
    """
    return parse_suite_text(read_suite_text(Path(file)), overrides, file=str(file), is_stored=is_stored)


def parse_suite_text(
    text: str, overrides: Overrides | None = None, *, file: str = "", is_stored: bool = False
) -> Suite:
    """Parse a suite from *text*, which may be stored in *file*, and apply *overrides*.

    *is_stored*: of a run that has begun, when keys that no optimizer reads were no mistake yet.

    Raises:
        SuiteError: all mistakes in either, each with its place.
    """
    tree, places = parse_suite(text, file)
    wrong = apply_overrides(tree, places, overrides or Overrides())
    try:
        suite = Suite.from_tree(tree, places, file=file, text=text)
    except SuiteError as error:
        raise SuiteError([*wrong, *error.mistakes]) from error
    if not is_stored:
        wrong += locate_problems(unused_optimizer_keys(suite.work, suite.axes, suite.include), places)
    if wrong:
        raise SuiteError(wrong)
    return suite


def locate_problems(problems: Sequence[Problem], places: SourceMap) -> list[SuiteMistake]:
    """Return *problems* with file and line, without duplicates, in the order of the file."""
    unique: dict[object, Problem] = {}
    for finding in problems:
        unique.setdefault((finding.path, finding.message), finding)
    placed = [places.mistake(finding.path, finding.message, finding.value) for finding in unique.values()]
    return sorted(placed, key=lambda mistake: mistake.line or 0)


def _whole(axes: Mapping[str, Any]) -> dict[str, Any]:
    """Axes of whole sections, such as ``workload``; a suite may list their values at its top level."""
    return {key: values for key, values in axes.items() if "." not in key}


def _plain(section: Any) -> RawMapping | None:
    return None if section is None else to_json_dict(section)
