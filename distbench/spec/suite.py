"""A suite: what to run, every default decided, with the place of each value in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distbench import registry
from distbench.case import Choice, Limits, Measure
from distbench.errors import Mistake, SuiteError
from distbench.job import Check, Checkpoint, Converge
from distbench.spec import overrides as overriding
from distbench.spec.cells import Axis, Exclude, Include, StrategyChoice
from distbench.spec.checking import Finding, to_plain
from distbench.spec.gate import Gate
from distbench.spec.overrides import Overrides
from distbench.spec.places import Places
from distbench.spec.reading import parse, read_text
from distbench.spec.schema import Reader
from distbench.spec.work import Raw, with_default_work


@dataclass(frozen=True)
class Suite:
    """A suite, checked as far as that is possible without knowing the machine."""

    name: str
    description: str
    device: str
    """auto, cpu or cuda."""
    world_sizes: tuple[int, ...] | None
    """None: auto, taken from the machine."""
    strategies: tuple[StrategyChoice, ...]
    work: Raw
    """The work of every case, in normal form and without the axes."""
    axes: tuple[Axis, ...]
    include: tuple[Include, ...]
    exclude: tuple[Exclude, ...]
    only: tuple[str, ...]
    """Globs on label or name; empty: all."""
    measure: Measure
    limits: Limits
    check: Check | None
    """How equivalence is checked; None: it is not."""
    checkpoint: Checkpoint | None
    """How checkpoints are tried; None: they are not."""
    converge: Converge | None
    """How each case is trained to a target; None: it is not."""
    gate: Gate
    """What may change between two arms, and how sure a verdict has to be."""
    launcher: Choice
    metrics: tuple[Choice, ...]
    file: str
    """As named on the command line; empty for a suite that is taken from a run."""
    text: str
    """The suite as the user wrote it."""
    places: Places = field(compare=False, repr=False)
    tree: Raw = field(compare=False, repr=False)
    """The suite as read, the overrides applied."""

    def resolved(self) -> dict[str, Any]:
        """Return the suite with every default decided, as plain JSON that is a suite again."""
        return {
            "name": self.name,
            "description": self.description,
            **with_default_work(self._work_with_data()),
            "strategies": [_raw(strategy.plugin.choice) for strategy in self.strategies],
            "world_sizes": "auto" if self.world_sizes is None else list(self.world_sizes),
            "device": self.device,
            "axes": {".".join(axis.path): list(axis.values) for axis in self.axes},
            "include": self.tree.get("include") or [],
            "exclude": self.tree.get("exclude") or [],
            "only": list(self.only),
            "measure": to_plain(self.measure),
            "limits": to_plain(self.limits),
            "check": to_plain(self.check) if self.check else None,
            "checkpoint": to_plain(self.checkpoint) if self.checkpoint else None,
            "converge": to_plain(self.converge) if self.converge else None,
            "gate": self.gate.resolved(),
            "launcher": _raw(self.launcher),
            "metrics": [_raw(metric) for metric in self.metrics],
        }

    def _work_with_data(self) -> Raw:
        varied = {axis.path for part in self.include for axis in part.axes} | {
            axis.path for axis in self.axes
        }
        if "data" in self.work or ("workload",) in varied:
            return self.work
        (workload,) = self.work["workload"]
        return {**self.work, "data": {registry.load("workloads", workload).default_data: {}}}

    @classmethod
    def from_resolved(cls, data: Mapping[str, Any], overrides: Overrides | None = None) -> Suite:
        """Return the suite that ``resolved`` gave, changed by *overrides*.

        Raises:
            SuiteError: a plug-in that it names is gone, or takes other options today; or what is wrong
                with *overrides*.
        """
        tree, places = dict(data), Places("the suite of the run")
        if wrong := overriding.apply(tree, places, overrides or Overrides()):
            raise SuiteError(wrong)
        return cls.from_tree(tree, places)

    @classmethod
    def from_tree(cls, tree: Raw, places: Places, *, file: str = "", text: str = "") -> Suite:
        """Return the suite that the top-level mapping *tree* describes.

        Raises:
            SuiteError: all that is wrong with it.
        """
        reader = Reader(tree)
        work, axes = reader.axes.work()
        strategies = reader.strategies()
        include, exclude = reader.axes.include(work, axes), reader.axes.exclude(work, axes)
        world_sizes = reader.world_sizes()
        measure, limits = reader.section(Measure, "measure"), reader.section(Limits, "limits")
        check, checkpoint = reader.job(Check, "check"), reader.job(Checkpoint, "checkpoint")
        converge = reader.job(Converge, "converge")
        gate = reader.gate()
        launcher = reader.plugin("launchers", reader.top.launcher, ("launcher",))
        metrics = reader.metrics()
        if measure and not measure.trials and not (check or checkpoint or converge):
            message = "leaves nothing to do: no check, checkpoint or converge is asked for"
            reader.findings.append(Finding(("measure", "trials"), message, 0))
        if reader.findings or measure is None or limits is None or launcher is None:
            raise SuiteError(mistakes(reader.findings, places))
        return cls(
            name=reader.top.name or Path(file).stem or "unnamed",
            description=reader.top.description,
            device=reader.top.device,
            world_sizes=world_sizes,
            strategies=strategies,
            work=work,
            axes=axes,
            include=include,
            exclude=exclude,
            only=tuple(reader.top.only),
            measure=measure,
            limits=limits,
            check=check,
            checkpoint=checkpoint,
            converge=converge,
            gate=gate,
            launcher=launcher,
            metrics=metrics,
            file=file,
            text=text,
            places=places,
            tree=tree,
        )


def load(file: str | Path, overrides: Overrides | None = None) -> Suite:
    """Return the suite of *file*, changed by what the command line overrides.

    Raises:
        SuiteError: everything that is wrong with either, each with its place.
    """
    text = read_text(Path(file))
    tree, places = parse(text, str(file))
    wrong = overriding.apply(tree, places, overrides or Overrides())
    try:
        suite = Suite.from_tree(tree, places, file=str(file), text=text)
    except SuiteError as error:
        raise SuiteError([*wrong, *error.mistakes]) from error
    if wrong:
        raise SuiteError(wrong)
    return suite


def mistakes(findings: Sequence[Finding], places: Places) -> list[Mistake]:
    """Return *findings* with file and line, each once, in the order of the file."""
    unique: dict[object, Finding] = {}
    for found in findings:
        unique.setdefault((found.path, found.message), found)
    placed = [places.mistake(found.path, found.message, found.value) for found in unique.values()]
    return sorted(placed, key=lambda mistake: mistake.line or 0)


def _raw(choice: Choice) -> Raw:
    return {choice.name: choice.options}
