"""Parse the sections of a suite and collect all mistakes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from distbench.core import registry
from distbench.core.case import CURRENT_ENVIRONMENT, PluginChoice
from distbench.core.job import job_kinds
from distbench.core.measurement import SuiteLimits
from distbench.core.suite_mistakes import KeyPath, Problem
from distbench.suite.axes import AxisParser, parse_world_sizes
from distbench.suite.cells import StrategyVariant, move_to_origin
from distbench.suite.cost import DeviceCost
from distbench.suite.cross_checks import parse_environments
from distbench.suite.gate import GateRules, parse_gate
from distbench.suite.plugin_options import (
    PluginChecker,
    expand_options,
    get_option,
    listed_options,
    parse_choice,
)
from distbench.suite.sections import all_have_defaults, check_section
from distbench.suite.strategy_labels import label_path, label_problem, repeated_labels, take_label
from distbench.suite.work import WorkChecker

if TYPE_CHECKING:
    from distbench.core.job import JobKind

T = TypeVar("T")


@dataclass(frozen=True)
class TopLevelKeys:
    """The top-level keys of a suite."""

    workload: Any
    """The model: a name, or a name with options."""
    batch: Any
    """global_batch_size or per_device_batch_size; micro_batch_size, gradient_accumulation_steps."""
    strategies: list[Any]
    """Names, or names with options."""
    name: str = ""
    """Name of the suite, used for its runs; by default the name of the file."""
    description: str = ""
    """Purpose of the suite, in words."""
    data: Any = None
    """Training data: a name, or a name with options; by default that of the workload."""
    optimizer: Any = field(default_factory=dict)
    """adamw, sgd, or a mapping with the hyperparameters."""
    precision: Any = field(default_factory=dict)
    """fp32, bf16, fp16, fp64, or the dtype of each part of a step."""
    loader: Any = None
    """Loader of the timed steps: workers, pin_memory, prefetch_factor, persistent_workers."""
    env: Any = field(default_factory=dict)
    """Environment variables that the ranks run with: NAME: text or a whole number. For another Python, see
    environment."""
    engine: Any = None
    """Framework that takes the steps: native (none), or a name, or a name with options."""
    activation_checkpointing: Any = "none"
    compile: Any = False
    threads: Any = "auto"
    seed: Any = 1234
    initial_weights: Any = "drawn"
    environment: Any = CURRENT_ENVIRONMENT
    environments: dict[str, Any] = field(default_factory=dict)
    """Other Python environments that cases may run in: a name, and the path of a virtual environment or of
    its python, relative to the suite file."""
    world_sizes: Any = "auto"
    """Numbers of devices; auto: powers of two up to the device count, and the device count."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on; auto: GPUs if there are any."""
    axes: dict[str, Any] = field(default_factory=dict)
    """Dotted path -> values: one case per combination."""
    include: list[dict[str, Any]] = field(default_factory=list)
    """Cases to add: a strategy (glob), a world_size, and values by dotted path."""
    exclude: list[dict[str, Any]] = field(default_factory=list)
    """Cases to leave out: a strategy (glob), a world_size, and values by dotted path."""
    only: list[str] = field(default_factory=list)
    """Globs on the label or name of cases to run."""
    limits: dict[str, Any] = field(default_factory=dict)
    """Time limits."""
    gate: dict[str, Any] | None = None
    """Allowed changes between two arms of distbench gate, such as tokens_per_s: 3%."""
    cost: dict[str, Any] | None = None
    """Price of a device, to show the cost and the duration of a training."""
    launcher: Any = "auto"
    """Launcher of the ranks; auto: that of the cluster in which this process runs, or else local."""
    metrics: list[Any] | None = None
    """Metrics to measure: names, or names with options; by default all."""


@functools.cache
def _with_job_sections(sections: tuple[tuple[str, Any], ...]) -> type[TopLevelKeys]:
    """The top-level keys, with those of *sections*: words of kinds of job, and their types."""
    fields = [(word, form, field(default=None)) for word, form in sections]
    top: type[TopLevelKeys] = dataclasses.make_dataclass("Top", fields, bases=(TopLevelKeys,), frozen=True)
    return top


def _surrounding_launcher() -> str:
    """Name of the launcher of the cluster that this process runs in; local if there is none."""
    own = registry.built_in_plugins("launchers")
    return next((name for name, launcher in own.items() if launcher.is_active()), "local")


def _section_type(kind: JobKind) -> Any:
    can_be_true = all_have_defaults(kind.section) and not kind.is_default
    return dict[str, Any] | bool | None if can_be_true else dict[str, Any] | None


class SuiteParser:
    """Parses the sections of one suite and collects mistakes in ``problems``."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.problems: list[Problem] = []
        self.plugins = PluginChecker()
        self.checker = WorkChecker(self.plugins)
        given = {key: value for key, value in tree.items() if value is not None}
        top = _with_job_sections(tuple((kind.name, _section_type(kind)) for kind in job_kinds()))
        checked, findings = check_section(top, given, ())
        self.problems += findings
        # after a mistake at the top level, continue with the rest to find further mistakes
        wrong = {finding.path[0] for finding in findings}
        sound = {key: value for key, value in given.items() if key not in wrong}
        self.top = checked or top(**{"workload": None, "batch": None, "strategies": [], **sound})
        self.axes = AxisParser(self.top, self.checker, self.problems)

    def parse_strategies(self) -> tuple[StrategyVariant, ...]:
        """Strategies, one per combination of options that list several values."""
        choices: list[StrategyVariant] = []
        for i, raw in enumerate(self.top.strategies):
            plugin = parse_choice(raw, ("strategies", i))
            if isinstance(plugin, Problem):
                self.problems.append(plugin)
            else:
                choices += self._parse_strategy(plugin, ("strategies", i))
        self.problems += repeated_labels(choices)
        if not self.top.strategies and not self.problems:
            self.problems.append(Problem(("strategies",), "empty; list at least one strategy"))
        return tuple(choices)

    def _parse_strategy(self, plugin: PluginChoice, origin: KeyPath) -> list[StrategyVariant]:
        plugin, label = take_label(plugin)
        variants = list(self._expand(plugin, origin))
        if label is None:
            return variants
        if why := label_problem(label, variants):
            self.problems.append(Problem(label_path((*origin, plugin.name)), why, label))
            return variants
        return [dataclasses.replace(each, given_label=str(label)) for each in variants]

    def parse_environments(self, file: str) -> dict[str, str]:
        """Name of each other Python environment -> its absolute path; *file* is that of the suite."""
        return self._collect(parse_environments(self.top.environments, file))

    def parse_limits(self) -> SuiteLimits:
        """Limits of trials."""
        return self._collect(check_section(SuiteLimits, self.top.limits, ("limits",))) or SuiteLimits()

    def parse_jobs(self) -> dict[str, Any]:
        """Sections of the requested kinds of job, in the order of a run."""
        sections = {kind.name: self._parse_job(kind) for kind in job_kinds()}
        return {word: section for word, section in sections.items() if section is not None}

    def _parse_job(self, kind: JobKind) -> Any:
        """Section of *kind*; None: not requested. ``true`` stands for the defaults."""
        raw = getattr(self.top, kind.name)
        if raw in (None, False) and not kind.is_default:
            return None
        return self._collect(check_section(kind.section, {} if raw in (None, True) else raw, (kind.name,)))

    def parse_gate(self) -> GateRules:
        """Rules of the gate; the defaults if the suite has none."""
        return self._collect(parse_gate(self.top.gate or {})) or GateRules()

    def parse_cost(self) -> DeviceCost | None:
        """Price of a device; None: not given in the suite."""
        return (
            None
            if self.top.cost is None
            else self._collect(check_section(DeviceCost, self.top.cost, ("cost",)))
        )

    def parse_world_sizes(self) -> tuple[int, ...] | None:
        """World sizes; None: auto."""
        raw = self.top.world_sizes
        return None if raw == "auto" else parse_world_sizes(raw, ("world_sizes",), self.problems)

    def parse_launcher(self) -> PluginChoice:
        """The launcher."""
        raw = _surrounding_launcher() if self.top.launcher == "auto" else self.top.launcher
        # after a mistake the choice is unused, since no suite is built
        return self._parse_plugin("launchers", raw, ("launcher",)) or PluginChoice("")

    def parse_metrics(self) -> tuple[PluginChoice, ...]:
        """Metrics; all if the suite names none."""
        raw = registry.plugin_names("metrics") if self.top.metrics is None else self.top.metrics
        choices: dict[str, PluginChoice] = {}
        for i, item in enumerate(raw):
            path: KeyPath = ("metrics", i)
            choice = self._parse_plugin("metrics", item, path)
            if choice and choice.name in choices:
                self.problems.append(Problem(path, "duplicate", choice.name))
            elif choice:
                choices[choice.name] = choice
        if self.top.metrics == []:
            self.problems.append(Problem(("metrics",), "empty; omit the key for all metrics"))
        return tuple(choices.values())

    def _parse_plugin(self, kind: str, raw: Any, path: KeyPath) -> PluginChoice | None:
        """Parse one plug-in choice; None after a mistake."""
        plugin = parse_choice(raw, path)
        if isinstance(plugin, Problem):
            self.problems.append(plugin)
            return None
        checked = self._collect(self.plugins.check(kind, plugin, path))
        return checked.choice if checked else None

    def _collect(self, result: tuple[T, list[Problem]]) -> T:
        """Collect the problems of the check *result* and return its value."""
        value, findings = result
        self.problems += findings
        return value

    def _expand(self, plugin: PluginChoice, origin: KeyPath) -> Iterator[StrategyVariant]:
        for option in listed_options(plugin, "strategies"):
            if not get_option(plugin, option):
                place = (*origin, plugin.name, *option)
                self.problems.append(Problem(place, "empty; list at least one value"))
        for variant, indices in expand_options(plugin, "strategies"):
            checked, findings = self.plugins.check("strategies", variant, origin)
            name = variant.name
            key_origins = {
                (*map(str, origin), name, *option): (*origin, name, *option, i)
                for option, i in indices.items()
            }
            self.problems += [move_to_origin(finding, key_origins) for finding in findings]
            if checked:
                yield StrategyVariant(checked, tuple(key_origins.values()) or ((*origin, name),))
