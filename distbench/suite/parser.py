"""The keys of a suite: from plain values to typed parts, collecting every mistake."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from distbench.core import registry
from distbench.core.case import CURRENT, Choice, Deadlines
from distbench.core.job import job_kinds
from distbench.core.suite_mistakes import KeyPath, SuiteMistake
from distbench.suite import environments as surroundings
from distbench.suite import gate as gating
from distbench.suite.axes import AxisReader, sizes
from distbench.suite.cells import StrategyChoice, located
from distbench.suite.cost import Cost
from distbench.suite.plugin_options import Plugins, axes_of, named, spread, value_of
from distbench.suite.sections import check, has_defaults
from distbench.suite.work import WorkChecker

if TYPE_CHECKING:
    from distbench.core.job import JobKind

T = TypeVar("T")


@dataclass(frozen=True)
class Top:
    """The top-level keys of a suite."""

    workload: Any
    """The model: a name, or a name with options."""
    batch: Any
    """global_batch_size or per_device_batch_size; micro_batch_size, gradient_accumulation_steps."""
    strategies: list[Any]
    """Names, or names with options."""
    name: str = ""
    """What runs are called after; by default the name of the file."""
    description: str = ""
    """What the suite is for, in words."""
    data: Any = None
    """What is trained on: a name, or a name with options; by default that of the workload."""
    optimizer: Any = field(default_factory=dict)
    """adamw, sgd, or a mapping with the hyperparameters."""
    precision: Any = field(default_factory=dict)
    """fp32, bf16, fp16, fp64, or the dtype of each part of a step."""
    activation_checkpointing: Any = "none"
    compile: Any = False
    threads: Any = "auto"
    seed: Any = 1234
    initial_weights: Any = "drawn"
    environment: Any = CURRENT
    environments: dict[str, Any] = field(default_factory=dict)
    """Other Python environments that cases may run in: a name, and the path of a virtual environment or of
    its python, relative to the suite file."""
    world_sizes: Any = "auto"
    """Numbers of devices; auto: powers of two up to the device count, and the device count."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What to train on; auto: GPUs if there are any."""
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
    """What a device costs, for numbers in money and hours."""
    launcher: Any = "auto"
    """What starts the ranks; auto: that of the cluster that this process is inside of, or else local."""
    metrics: list[Any] | None = None
    """What is measured: names, or names with options; by default all."""


@functools.cache
def _top(sections: tuple[tuple[str, Any], ...]) -> type[Top]:
    """The top-level keys with those of *sections*: words of kinds of job, and the types that they take."""
    fields = [(word, form, field(default=None)) for word, form in sections]
    top: type[Top] = dataclasses.make_dataclass("Top", fields, bases=(Top,), frozen=True)
    return top


def _launcher_here() -> str:
    """Name of the launcher that ``auto`` stands for."""
    own = registry.built_in("launchers")
    return next((name for name, launcher in own.items() if launcher.is_around()), "local")


def _form(kind: JobKind) -> Any:
    can_be_true = has_defaults(kind.section) and not kind.always
    return dict[str, Any] | bool | None if can_be_true else dict[str, Any] | None


class Reader:
    """Reads the parts of one suite and collects mistakes in ``findings``."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.findings: list[SuiteMistake] = []
        self.plugins = Plugins()
        self.checker = WorkChecker(self.plugins)
        given = {key: value for key, value in tree.items() if value is not None}
        top = _top(tuple((kind.name, _form(kind)) for kind in job_kinds()))
        checked, findings = check(top, given, ())
        self.findings += findings
        # after a mistake at the top level, continue with the rest to find further mistakes
        wrong = {finding.path[0] for finding in findings}
        sound = {key: value for key, value in given.items() if key not in wrong}
        self.top = checked or top(**{"workload": None, "batch": None, "strategies": [], **sound})
        self.axes = AxisReader(self.top, self.checker, self.findings)

    def strategies(self) -> tuple[StrategyChoice, ...]:
        """Strategies, one per combination of options that list several values."""
        choices: list[StrategyChoice] = []
        for i, raw in enumerate(self.top.strategies):
            plugin = named(raw, ("strategies", i))
            if isinstance(plugin, SuiteMistake):
                self.findings.append(plugin)
            else:
                choices += self._spread(plugin, ("strategies", i))
        if not self.top.strategies and not self.findings:
            self.findings.append(SuiteMistake(("strategies",), "empty; list at least one strategy"))
        return tuple(choices)

    def environments(self, file: str) -> dict[str, str]:
        """Name of each other Python environment -> its absolute path; *file* is that of the suite."""
        return self._kept(surroundings.read(self.top.environments, file))

    def limits(self) -> Deadlines:
        """Time limits."""
        return self._kept(check(Deadlines, self.top.limits, ("limits",))) or Deadlines()

    def jobs(self) -> dict[str, Any]:
        """Sections of the kinds of job that are asked for, in the order of a run."""
        sections = {kind.name: self._job(kind) for kind in job_kinds()}
        return {word: section for word, section in sections.items() if section is not None}

    def _job(self, kind: JobKind) -> Any:
        """Section of *kind*; None: it is not asked for. ``true`` stands for the defaults."""
        raw = getattr(self.top, kind.name)
        if raw in (None, False) and not kind.always:
            return None
        return self._kept(check(kind.section, {} if raw in (None, True) else raw, (kind.name,)))

    def gate(self) -> gating.GateRules:
        """Rules of the gate; the defaults if the suite has none."""
        return self._kept(gating.read(self.top.gate or {})) or gating.GateRules()

    def cost(self) -> Cost | None:
        """What a device costs; None: the suite does not say."""
        return None if self.top.cost is None else self._kept(check(Cost, self.top.cost, ("cost",)))

    def world_sizes(self) -> tuple[int, ...] | None:
        """World sizes; None: auto."""
        raw = self.top.world_sizes
        return None if raw == "auto" else sizes(raw, ("world_sizes",), self.findings)

    def launcher(self) -> Choice:
        """The launcher."""
        raw = _launcher_here() if self.top.launcher == "auto" else self.top.launcher
        # after a mistake the choice is of no use, and no suite is made of it
        return self._plugin("launchers", raw, ("launcher",)) or Choice("")

    def metrics(self) -> tuple[Choice, ...]:
        """Metrics; all if the suite names none."""
        raw = registry.names("metrics") if self.top.metrics is None else self.top.metrics
        choices: dict[str, Choice] = {}
        for i, item in enumerate(raw):
            path: KeyPath = ("metrics", i)
            choice = self._plugin("metrics", item, path)
            if choice and choice.name in choices:
                self.findings.append(SuiteMistake(path, "duplicate", choice.name))
            elif choice:
                choices[choice.name] = choice
        if self.top.metrics == []:
            self.findings.append(SuiteMistake(("metrics",), "empty; omit the key for all metrics"))
        return tuple(choices.values())

    def _plugin(self, kind: str, raw: Any, path: KeyPath) -> Choice | None:
        """One checked choice; None after a mistake."""
        plugin = named(raw, path)
        if isinstance(plugin, SuiteMistake):
            self.findings.append(plugin)
            return None
        checked = self._kept(self.plugins.check(kind, plugin, path))
        return checked.choice if checked else None

    def _kept(self, checked: tuple[T, list[SuiteMistake]]) -> T:
        """What was *checked*, whose mistakes are collected."""
        value, findings = checked
        self.findings += findings
        return value

    def _spread(self, plugin: Choice, origin: KeyPath) -> Iterator[StrategyChoice]:
        for option in axes_of(plugin, "strategies"):
            if not value_of(plugin, option):
                place = (*origin, plugin.name, *option)
                self.findings.append(SuiteMistake(place, "empty; list at least one value"))
        for variant, indices in spread(plugin, "strategies"):
            checked, findings = self.plugins.check("strategies", variant, origin)
            name = variant.name
            key_origins = {
                (*map(str, origin), name, *option): (*origin, name, *option, i)
                for option, i in indices.items()
            }
            self.findings += [located(finding, key_origins) for finding in findings]
            if checked:
                yield StrategyChoice(checked, tuple(key_origins.values()) or ((*origin, name),))
