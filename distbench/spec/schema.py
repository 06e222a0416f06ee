"""The keys of a suite: from plain values to typed parts, every mistake collected on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from distbench import registry
from distbench.case import Choice
from distbench.spec import gate as gating
from distbench.spec.axes import AxisReader, sizes
from distbench.spec.cells import (
    StrategyChoice,
    located,
)
from distbench.spec.checking import Finding, check
from distbench.spec.places import KeyPath
from distbench.spec.plugins import Named, Plugins, axes_of, named, spread
from distbench.spec.work import (
    WorkChecker,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Top:
    """The top-level keys of a suite."""

    workload: Any
    """The model: a name, or one name with its options."""
    batch: Any
    """global_batch_size or per_device_batch_size; micro_batch_size, gradient_accumulation_steps."""
    strategies: list[Any]
    """Names, or names with their options."""
    name: str = ""
    """Default: the file's name."""
    description: str = ""
    data: Any = None
    """Default: the workload's own."""
    optimizer: Any = field(default_factory=dict)
    precision: Any = field(default_factory=dict)
    """fp32, bf16, fp16, or the dtype of each part of a step."""
    activation_checkpointing: Any = "none"
    threads: Any = "auto"
    seed: Any = 1234
    world_sizes: Any = "auto"
    """Numbers of devices; auto: powers of two up to the device count, and the device count."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    axes: dict[str, Any] = field(default_factory=dict)
    """Dotted path -> values: one case for each combination."""
    include: list[dict[str, Any]] = field(default_factory=list)
    exclude: list[dict[str, Any]] = field(default_factory=list)
    only: list[str] = field(default_factory=list)
    """Globs on label or name of the cases to keep."""
    measure: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    check: dict[str, Any] | bool | None = None
    """true, or steps and the rest: check each case for equivalence before it is measured."""
    checkpoint: dict[str, Any] | bool | None = None
    """true, or steps_before and steps_after: save, load and consolidate each case before it is measured."""
    converge: dict[str, Any] | None = None
    """targets and the rest: train each case to a target on held-out data."""
    gate: dict[str, Any] | None = None
    """What may change between two arms (distbench gate): tokens_per_s: 3% and the rest."""
    launcher: Any = "local"
    metrics: list[Any] | None = None
    """Default: all."""


class Reader:
    """Reads the parts of one suite; what is wrong gathers in ``findings``."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.findings: list[Finding] = []
        self.plugins = Plugins()
        self.checker = WorkChecker(self.plugins)
        given = {key: value for key, value in tree.items() if value is not None}
        checked, findings = check(Top, given, ())
        self.findings += findings
        # with a mistake at the top, go on with what has the right form, to find the others too
        wrong = {finding.path[0] for finding in findings}
        sound = {key: value for key, value in given.items() if key not in wrong}
        self.top = checked or Top(**{"workload": None, "batch": None, "strategies": [], **sound})
        self.axes = AxisReader(self.top, self.checker, self.findings)

    def strategies(self) -> tuple[StrategyChoice, ...]:
        """Return the strategies, one for each combination of options that list several values."""
        found = []
        for i, raw in enumerate(self.top.strategies):
            plugin = named(raw, ("strategies", i))
            if isinstance(plugin, Finding):
                self.findings.append(plugin)
            else:
                found += list(self._spread(plugin, ("strategies", i)))
        if not self.top.strategies and not self.findings:
            self.findings.append(Finding(("strategies",), "names no strategy"))
        return tuple(found)

    def section(self, cls: type[T], key: str) -> T | None:
        """Return ``measure`` or ``limits``."""
        value, findings = check(cls, getattr(self.top, key), (key,))
        self.findings += findings
        return value

    def job(self, cls: type[T], key: str) -> T | None:
        """Return what is asked of a kind of job: ``true`` stands for its defaults; None: nothing."""
        raw = getattr(self.top, key)
        if raw is None or raw is False:
            return None
        value, findings = check(cls, {} if raw is True else raw, (key,))
        self.findings += findings
        return value

    def gate(self) -> gating.Gate:
        """Return the rules of the gate, all at their defaults where the suite has none."""
        rules, findings = gating.read(self.top.gate or {})
        self.findings += findings
        return rules or gating.Gate()

    def world_sizes(self) -> tuple[int, ...] | None:
        """Return the world sizes asked for; None: auto."""
        raw = self.top.world_sizes
        return None if raw == "auto" else sizes(raw, ("world_sizes",), self.findings)

    def plugin(self, kind: str, raw: Any, path: KeyPath) -> Choice | None:
        """Return one checked choice."""
        plugin = named(raw, path)
        if isinstance(plugin, Finding):
            self.findings.append(plugin)
            return None
        checked, findings = self.plugins.check(kind, plugin, path)
        self.findings += findings
        return checked.choice if checked else None

    def metrics(self) -> tuple[Choice, ...]:
        """Return the metrics, all that there are if the suite names none."""
        raw = registry.names("metrics") if self.top.metrics is None else self.top.metrics
        found: dict[str, Choice] = {}
        for i, item in enumerate(raw):
            path: KeyPath = ("metrics", i)
            choice = self.plugin("metrics", item, path)
            if choice and choice.name in found:
                self.findings.append(Finding(path, "named twice", choice.name))
            elif choice:
                found[choice.name] = choice
        if self.top.metrics == []:
            self.findings.append(Finding(("metrics",), "names no metric; leave the key out for all"))
        return tuple(found.values())

    def _spread(self, plugin: Named, origin: KeyPath) -> Iterator[StrategyChoice]:
        for key in axes_of(plugin, "strategies"):
            if not plugin.options[key]:
                self.findings.append(Finding((*origin, plugin.name, key), "lists no value"))
        for one, taken in spread(plugin, "strategies"):
            checked, findings = self.plugins.check("strategies", one, origin)
            key_origins = {
                (*map(str, origin), one.name, key): (*origin, one.name, key, i) for key, i in taken.items()
            }
            self.findings += [located(finding, key_origins) for finding in findings]
            if checked:
                yield StrategyChoice(checked, next(iter(key_origins.values()), (*origin, one.name)))
