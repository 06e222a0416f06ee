"""Metric plug-ins: columns, hooks in the ranks, and summaries over ranks."""

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
from distbench.engines.base import engine_of

if TYPE_CHECKING:
    import torch

    from distbench.strategies.base import Strategy
    from distbench.strategies.engine import Engine
    from distbench.workloads.base import Workload

Pass = Literal["probe", "warmup", "time", "ready", "count", "profile", "grad_norm", "unsynced"]


class NotAvailable(Exception):
    """A value is not available; the message is the reason."""


Values = dict[str, "float | list[float | None] | NotAvailable"]


def value_or_reason(number: Callable[[], float]) -> float | NotAvailable:
    """Return the result of *number*, or the reason why it is not available."""
    try:
        return float(number())
    except NotAvailable as reason:
        return reason


def partial_training_reason(effective: Mapping[str, Any]) -> NotAvailable | None:
    """Reason why theory does not apply: a part of the model is not trained. None if all of it is.

    Args:
        effective: Effective settings reported by the live engine (``Engine.effective_settings``); a plug-in's
            engine may not report all.
    """
    every = effective["parameters"]
    trained = effective.get("trained_parameters", every)
    if trained == every:
        return None
    return NotAvailable(f"theory assumes that all parameters are trained, but only {trained} of {every} are")


class SharedResult:
    """Base class of results that a metric shares with metrics of later passes on the same rank."""


SharedT = TypeVar("SharedT", bound=SharedResult)


COMPUTED_TOKENS = "computed_tokens"
"""Column: tokens of a rank in each timed step, where samples differ in their labels."""

PROFILE_TOKENS = "profile_tokens"
"""Column: the same of each profiled step."""


@dataclass(frozen=True)
class TokenCount:
    """Tokens of the samples of a step that a rank has."""

    labels: int
    """Labels that the loss counts."""
    computed: int
    """All tokens that the model takes, padding included."""
    samples: int = 0
    lengths: Sequence[int] = ()
    """Length of each sample, or of each document in packed ones; empty: that of the workload."""


@dataclass
class PassContext:
    """State of one pass on one rank, given to the hooks of a metric."""

    case: Case
    workload: Workload
    strategy: Strategy
    engine: Engine
    device: torch.device
    rank: int
    world_size: int
    nodes: Sequence[int]
    """Node number of each rank."""
    pass_name: Pass
    folder: Path
    """Folder of the trial, for files too large for a record."""
    effective: dict[str, Any] = field(default_factory=dict)
    """Effective settings of the live engine; known once the ``time`` pass has ended."""
    keep_traces: bool = False
    """True if traces were requested."""
    step_times: list[float] = field(default_factory=list)
    """Seconds of each step of this pass, filled when the pass has ended."""
    earlier_step_times: Mapping[Pass, list[float]] = field(default_factory=dict)
    """Seconds of each step of the passes that have ended."""
    data_waits: list[float] = field(default_factory=list)
    """Seconds of each step of this pass until its micro-batches were there."""
    token_counts: list[TokenCount] = field(default_factory=list)
    """Tokens of each step of this pass; empty: all count."""
    lengths_differ: bool = False
    """True if micro-batches differ in length."""
    losses: list[float] = field(default_factory=list)
    """This rank's mean loss of each step of this pass, filled when the pass has ended."""
    grad_norms: list[float] = field(default_factory=list)
    """Gradient norm of each step, filled when the ``grad_norm`` pass has ended."""
    gradient_ranges: list[dict[str, Any]] = field(default_factory=list)
    """Range of each gradient in fp16 in the last step of the ``grad_norm`` pass; empty: unknown."""
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Rows for the record, by the name of a table in ``Metric.tables``."""
    shared_results: dict[type[SharedResult], SharedResult] = field(default_factory=dict)
    """Results that metrics have shared so far."""

    @property
    def unseen_communication(self) -> NotAvailable | None:
        """Reason why nothing about collectives is available; None: they can be counted and timed."""
        if engine_of(self.case).communicates_by_torch:
            return None
        name = self.case.engine.name
        return NotAvailable(f"engine {name} communicates outside of torch.distributed")

    @property
    def devices_per_rank(self) -> int:
        """Number of devices that this rank drives: several with nn.DataParallel, else one."""
        return self.case.world_size // self.world_size

    def share(self, result: SharedResult) -> None:
        """Share *result* with metrics of later passes."""
        self.shared_results[type(result)] = result

    def shared(self, kind: type[SharedT]) -> SharedT | None:
        """Return the shared result of class *kind*; None if no metric has shared one."""
        result = self.shared_results.get(kind)
        return result if isinstance(result, kind) else None


@dataclass(frozen=True)
class TrialData:
    """Data of one trial from all ranks, from which a metric computes its summary."""

    case: Case
    tokens_per_sample: float
    samples: dict[str, list[list[float | None]]]
    """Column -> rank -> step, of every metric."""
    phases: dict[str, list[float]]
    """Phase (start, build and each pass) -> seconds by rank."""
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Rows from metrics in the ranks (each with its ``rank``) and from samplers."""
    flops_per_sample: int | None = None
    """Model FLOPs of forward and backward for one sample, by formula or counted; None: unknown."""
    recomputed_flops_per_sample: int | None = None
    """FLOPs per sample that activation checkpointing computes again; None: unknown."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Column -> reason why rank 0 gave no number."""
    window: tuple[float, float] = (0.0, 0.0)
    """``clock.now()`` when the first rank began the ``time`` pass and when the last one ended it."""
    effective: dict[str, Any] = field(default_factory=dict)
    """Effective settings of the live engine on rank 0."""
    nodes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Node -> its ranks; empty: all ranks are on the host of the command."""

    def slowest_steps(self, column: str) -> list[float]:
        """Largest value over ranks in each step: the slowest rank determines the step.

        Raises:
            NotAvailable: a rank did not give this column for every step.
        """
        return [max(step) for step in self.by_step(column)]

    def by_step(self, column: str) -> list[list[float]]:
        """Values of all ranks, by step.

        Raises:
            NotAvailable: a rank did not give this column for every step.
        """
        ranks = self.samples.get(column) or [[]]
        if len({len(rank) for rank in ranks}) > 1:
            raise NotAvailable(f"ranks gave {column} of different numbers of steps")
        steps = [[value for value in step if value is not None] for step in zip(*ranks, strict=True)]
        if not steps or any(len(step) < len(ranks) for step in steps):
            raise NotAvailable(f"needs {column} of every rank and step")
        return steps

    def slowest_mean(self, column: str) -> float:
        """Mean over steps on the slowest rank: ranks begin together, so its window is that of the trial.

        The mean of ``slowest_steps`` would be longer if loosely coupled ranks take turns in being late, while
        the trial takes no longer.

        Raises:
            NotAvailable: a rank did not give this column for every step.
        """
        steps = self.by_step(column)
        return max(map(math.fsum, zip(*steps, strict=True))) / len(steps)


class Sampler(ABC):
    """Observer of a trial from outside its ranks: in the command, or in the agent of each node."""

    @abstractmethod
    def stop(self) -> list[dict[str, Any]]:
        """Stop sampling; return rows for the table that has the name of the metric."""


def sampler_failure(metric: str, error: Exception) -> str:
    """Reason why the sampler of *metric*, which raised *error*, has no results."""
    return f"the sampler of metric {metric}: {type(error).__name__}: {error}"


class Metric(ABC):
    """Base class of metrics: a frozen dataclass of options. ``start`` returns the state of a pass."""

    columns: ClassVar[tuple[Column, ...]]
    passes: ClassVar[frozenset[Pass]] = frozenset({"time"})
    """Passes in which the metric takes part. Nothing that slows a step may run in ``time``. ``ready``
    are as many steps as ``time`` without a wait for the loader, only if a case has one. ``count`` is one
    communication cycle in which operations and bytes are recorded; ``profile`` is some steps under the
    profiler."""

    tables: ClassVar[tuple[TableSpec, ...]] = ()
    """Tables of the metric."""
    early_imports: ClassVar[tuple[str, ...]] = ()
    """Modules that every fork server of ranks imports once: they need only torch and take long to import. A
    failed import is left to the ranks that need the module."""

    devices: ClassVar[frozenset[Device]] = frozenset({"cpu", "cuda"})
    """Devices on which ``prepare`` and ``install`` have something to do; they are not called on others."""

    def prepare(self) -> list[str]:
        """Build once, in a separate process, what trials need; return messages for users."""
        return []

    def install(self) -> None:  # noqa: B027
        """Enable what must be active before the model is built. Runs in the rank."""

    def start(self, context: PassContext) -> Any:
        """Begin a pass; the return value is passed to the other hooks."""
        return None

    def before_step(self, context: PassContext, state: Any) -> None:  # noqa: B027
        """Run before each step of the pass. Called only if overridden."""

    def after_step(self, context: PassContext, state: Any) -> None:  # noqa: B027
        """Run after each step of the pass. Called only if overridden."""

    def around(self, context: PassContext, state: Any, span: str) -> AbstractContextManager[Any]:
        """Context around a part of a step: ``data``, ``forward``, ``backward`` or ``optimizer``.

        In a pipeline also around each pass of a stage: see ``Engine.span``.

        Called only if overridden, and never in ``warmup`` or ``time``: a strategy can detect where
        observation begins or ends, and must not detect where the timed window begins.
        """
        return nullcontext()

    def values(self, context: PassContext, state: Any) -> Values:
        """End a pass: return the numbers of this rank by column (a list for a ``per_step`` column).

        ``NotAvailable`` instead of a number: it is not available here, and the record keeps the reason.

        Raises:
            NotAvailable: no number is available.
        """
        return {}

    def summary(self, trial: TrialData) -> Mapping[str, float | NotAvailable]:
        """Return the numbers of all ranks together, by column. Runs in the parent.

        A value may be ``NotAvailable``, as in ``values``.

        Raises:
            NotAvailable: no number is available.
        """
        return {}

    def sampler(self, case: Case) -> Sampler | None:
        """Start to sample a trial from outside its ranks, in the parent; None: nothing to sample.

        On several nodes the agent of each node starts its sampler. Its *case* has only the ranks of the node:
        ``world_size`` is their number. Its rows then have a ``node``.
        """
        return None

    def degraded_reason(self, trial: TrialData) -> str:
        """Reason to exclude a measured trial from comparisons (a noisy machine); empty if it is clean."""
        return ""


PLUGIN_BASE = Metric
