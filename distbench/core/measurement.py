"""Measurement of a case: its steps and trials, and their limits."""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Literal

from distbench.core.bounds import Bound, Positive


@dataclass(frozen=True)
class MeasureConfig:
    """Measurement of a case: warm-up, timed steps and trials."""

    # optimizers create their states in the first step, which must not be timed
    warmup: Annotated[int, Bound(1, 1_000_000)] = 3
    """Steps per trial before the timed window."""
    steps: Annotated[int, Bound(1, 1_000_000)] = 10
    """Timed steps per trial."""
    trials: Annotated[int, Bound(0, 10_000)] = 3
    """Launches per case; the launch is the unit of statistics."""
    repeat_noisy: Annotated[int, Bound(0, 10_000)] = field(default=0, metadata={"since": 4})
    """Maximum launches per case that distbench run adds, one per round, to replace trials that other
    processes disturbed."""
    profile_steps: Annotated[int, Bound(0, 10_000)] = 2
    """Steps under the profiler, after the timed window; at least a whole period of post-local SGD."""
    keep_traces: bool = False
    """Keep the profiler's trace of every trial (Chrome/Perfetto JSON, gzipped) next to its record;
    false: only of trials in which something looks wrong."""
    unsynced_steps: Annotated[int, Bound(0, 1_000_000)] = 0
    """Steps without communication at the very end, if the strategy supports them (ddp, unless its optimizer
    communicates): a second, independent measure of exposed communication."""
    check_steps: Annotated[int, Bound(1, 10_000)] = 1
    """Steps after those in which the gradient norm is measured."""
    order: Literal["interleaved", "sequential"] = "interleaved"
    """interleaved: round i of all cases before round i+1, with every second round reversed."""


@dataclass(frozen=True)
class SuiteLimits:
    """Limits of trials: times in seconds, and memory.

    A trial that exceeds a time ends with status ``hang`` or ``init_timeout``. null: by the size of the case,
    as plan shows, and never less than what is said below.
    """

    prepare: Positive | None = None
    """Building C++ ops and the initial weights, once per run; null: at least 900."""
    start: Positive | None = None
    """From launch until all ranks have joined the process group; null: at least 120."""
    build: Positive | None = None
    """Building model, engine and optimizer, or saving or loading a checkpoint; null: at least 600."""
    step: Positive | None = None
    """One step (the first may compile); null: at least 120."""
    trial: Positive | None = None
    """A whole trial; null: at least 3600."""
    predicted_memory: Annotated[float, Bound(0, 1, open_low=True)] | None = None
    """Share of the memory of a GPU, or of a node with CPUs, that the tensors of a step may take, above 0 and
    at most 1, such as 0.95. A step of each case is traced before the first trial (plan --trace); a case that
    takes more is unsupported, and is not launched. null: nothing is traced."""


@dataclass(frozen=True)
class TimeLimits:
    """The time limits of one trial, in seconds; by default the least that a suite leaves open."""

    prepare: float = 900.0
    start: float = 120.0
    build: float = 600.0
    step: float = 120.0
    trial: float = 3600.0

    def overridden_by(self, overrides: SuiteLimits) -> "TimeLimits":
        """These limits, with the times of *overrides* applied."""
        given = {name: getattr(overrides, name) for name in vars(self)}
        return dataclasses.replace(self, **{name: s for name, s in given.items() if s is not None})
