"""The seam of metrics: described columns, hooks in the worker, and a summary over ranks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from distbench.core.case import Case, Device
from distbench.core.columns import Column, TableSpec

if TYPE_CHECKING:
    import torch

    from distbench.strategies.base import Strategy
    from distbench.strategies.engine import Engine
    from distbench.workloads.base import Workload

Pass = Literal["probe", "warmup", "time", "count", "profile", "grad_norm", "unsynced"]


class NotAvailable(Exception):
    """A metric's numbers can't be known here; the message is the reason."""


Values = dict[str, "float | list[float | None] | NotAvailable"]


def value_or_reason(number: Callable[[], float]) -> float | NotAvailable:
    """Result of *number*, or the reason why it has none."""
    try:
        return float(number())
    except NotAvailable as reason:
        return reason


def partial_training_reason(effective: Mapping[str, Any]) -> NotAvailable | None:
    """Why a strategy has no theory for a model of which only a part is trained; None if all of it is.

    Args:
        effective: What the live engine told (``Engine.effective_settings``); one of a plug-in may not tell
            it.
    """
    every = effective["parameters"]
    trained = effective.get("trained_parameters", every)
    if trained == every:
        return None
    return NotAvailable(
        f"theory assumes that the whole model is trained, but {trained} of {every} parameters are"
    )


class SharedResult:
    """Base of what a metric leaves for metrics of later passes of the same rank, which ask for its class."""


SharedT = TypeVar("SharedT", bound=SharedResult)


@dataclass
class PassContext:
    """What a metric may look at in the worker, in one pass of one rank."""

    case: Case
    workload: Workload
    strategy: Strategy
    engine: Engine
    device: torch.device
    rank: int
    world_size: int
    nodes: Sequence[int]
    """Number of the node of each rank."""
    pass_name: Pass
    folder: Path
    """The trial's folder, for files too large for a record."""
    effective: dict[str, Any] = field(default_factory=dict)
    """What the live engine really does; known once the ``time`` pass has ended."""
    keep_traces: bool = False
    """Whether traces were asked for."""
    step_times: list[float] = field(default_factory=list)
    """Seconds of each step of this pass, filled when the pass has ended."""
    earlier_step_times: Mapping[Pass, list[float]] = field(default_factory=dict)
    """Seconds of each step of the passes that have ended."""
    losses: list[float] = field(default_factory=list)
    """This rank's mean loss of each step of this pass, filled when the pass has ended."""
    grad_norms: list[float] = field(default_factory=list)
    """Gradient norm of each step, filled when the ``grad_norm`` pass has ended."""
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Rows that a metric leaves in the record, by the name of a table that ``Metric.tables`` describes."""
    shared_results: dict[type[SharedResult], SharedResult] = field(default_factory=dict)
    """What metrics have left so far."""

    @property
    def devices_per_rank(self) -> int:
        """Number of devices that this rank drives: several with nn.DataParallel, else one."""
        return self.case.world_size // self.world_size

    def share(self, result: SharedResult) -> None:
        """Leave *result* for metrics of later passes."""
        self.shared_results[type(result)] = result

    def shared(self, kind: type[SharedT]) -> SharedT | None:
        """Result of class *kind* that another metric left, or None: that metric takes no part."""
        result = self.shared_results.get(kind)
        return result if isinstance(result, kind) else None


@dataclass(frozen=True)
class TrialData:
    """What a metric may look at in the parent to make one number of all ranks."""

    case: Case
    tokens_per_sample: int
    samples: dict[str, list[list[float | None]]]
    """Column -> rank -> step, of every metric."""
    phases: dict[str, list[float]]
    """Phase (start, build and each pass) -> seconds by rank."""
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Rows that metrics left in the ranks (each has its ``rank``), and those of samplers."""
    flops_per_sample: int | None = None
    """Model FLOPs of forward and backward for one sample, by formula or counted; None: unknown."""
    recomputed_flops_per_sample: int | None = None
    """Those that activation checkpointing computes again; None: unknown."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Column -> why rank 0 gave no number."""
    window: tuple[float, float] = (0.0, 0.0)
    """``clock.now()`` when the first rank began the ``time`` pass and when the last had ended it."""
    effective: dict[str, Any] = field(default_factory=dict)
    """What the live engine of rank 0 really did."""
    nodes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Node -> its ranks; empty: all are where the command is."""

    def slowest_steps(self, column: str) -> list[float]:
        """Largest value over ranks in each step: the slowest rank determines the step.

        Raises:
            Absent: a rank gave no such number.
        """
        return [max(step) for step in self.by_step(column)]

    def by_step(self, column: str) -> list[list[float]]:
        """Values of all ranks in each step.

        Raises:
            Absent: a rank gave no such number.
        """
        ranks = self.samples.get(column) or [[]]
        if len({len(rank) for rank in ranks}) > 1:
            raise NotAvailable(f"ranks gave {column} of different numbers of steps")
        steps = [[value for value in step if value is not None] for step in zip(*ranks, strict=True)]
        if not steps or any(len(step) < len(ranks) for step in steps):
            raise NotAvailable(f"needs {column} of every rank and step")
        return steps

    def slowest_mean(self, column: str) -> float:
        """Mean over the steps of the slowest rank: the ranks begin together, so its window is the trial's.

        The mean of ``slowest_steps`` would be longer where ranks are loosely coupled and take turns in being
        late, although the trial is not.

        Raises:
            Absent: a rank gave no such number.
        """
        steps = self.by_step(column)
        return max(map(math.fsum, zip(*steps, strict=True))) / len(steps)


class Sampler(ABC):
    """Watches from outside of the ranks while a trial runs: in the command, or in the agent of each node."""

    @abstractmethod
    def stop(self) -> list[dict[str, Any]]:
        """End the watching; return rows for the table that bears the metric's name."""


def sampler_failure(metric: str, error: Exception) -> str:
    """Why there is nothing of the sampler of *metric*, which raised *error*."""
    return f"the sampler of metric {metric}: {type(error).__name__}: {error}"


class Metric(ABC):
    """Something measured. A frozen dataclass for its options; state of a pass lives in ``start``'s return."""

    columns: ClassVar[tuple[Column, ...]]
    passes: ClassVar[frozenset[Pass]] = frozenset({"time"})
    """The passes in which it takes part. Whatever slows a step has no place in ``time``: ``count`` is
    one step in which operations and bytes are booked, ``profile`` some steps under the profiler."""

    tables: ClassVar[tuple[TableSpec, ...]] = ()
    """The tables that it leaves."""
    early_imports: ClassVar[tuple[str, ...]] = ()
    """Modules that every warm parent of ranks imports once: they need torch alone and take long. One that
    fails is left to the ranks that need it."""

    devices: ClassVar[frozenset[Device]] = frozenset({"cpu", "cuda"})
    """On which devices ``prepare`` and ``install`` have something to do; elsewhere they are not called."""

    def prepare(self) -> list[str]:
        """Build once, in a process of its own, what trials need; return what users should know."""
        return []

    def install(self) -> None:  # noqa: B027
        """Switch on what must be on before the model is built. Runs in the rank."""

    def start(self, context: PassContext) -> Any:
        """Begin a pass; what is returned is handed to the other hooks."""
        return None

    def before_step(self, context: PassContext, state: Any) -> None:  # noqa: B027
        """Called before each step of the pass. Only overridden versions are called at all."""

    def after_step(self, context: PassContext, state: Any) -> None:  # noqa: B027
        """Called after each step of the pass. Only overridden versions are called at all."""

    def around(self, context: PassContext, state: Any, span: str) -> AbstractContextManager[Any]:
        """Context around a part of a step: ``data``, ``forward``, ``backward`` or ``optimizer``.

        A pipeline has a pass of a stage around it: see ``Engine.span``.

        Only overridden versions are called at all; never in ``warmup`` or ``time``: a strategy sees where
        observing begins or ends, and where the timed window begins it is not to see.
        """
        return nullcontext()

    def values(self, context: PassContext, state: Any) -> Values:
        """End a pass: return this rank's numbers by column (a list for a ``per_step`` column).

        ``NotAvailable`` in place of a number: it can't be known here, and the record keeps the reason.

        Raises:
            Absent: none of them can.
        """
        return {}

    def summary(self, trial: TrialData) -> Mapping[str, float | NotAvailable]:
        """Numbers of all ranks together, by column, or ``NotAvailable`` as in ``values``. Runs in the parent.

        Raises:
            Absent: none of them can.
        """
        return {}

    def sampler(self, case: Case) -> Sampler | None:
        """Begin to watch a trial from outside of its ranks, in the parent; None: nothing to watch.

        On several nodes it is the agent of each that begins, with *case* as if there were only the node's
        ranks: ``world_size`` is their number. Its rows then have a ``node``.
        """
        return None

    def degraded_reason(self, trial: TrialData) -> str:
        """Why a measured trial must be kept out of comparisons (a noisy machine); empty if it is clean."""
        return ""


PLUGIN_BASE = Metric
