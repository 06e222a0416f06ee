"""What one cell of a suite is asked to do: the work itself, with every default already decided.

Plain frozen dataclasses: the plan makes them, a trial carries them as JSON, the worker acts on
them, and a record keeps them. The id of a case is a hash of exactly these fields.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

Dtype = Literal["fp64", "fp32", "bf16", "fp16"]
Device = Literal["cpu", "cuda"]

TORCH_NAMES: dict[str, str] = {
    "fp64": "float64",
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
}
"""What torch calls each dtype."""
BYTES: dict[str, int] = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of an element of each dtype."""


@dataclass(frozen=True)
class Choice:
    """A plug-in by name, with the options given to it."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """How the samples of one optimizer step are cut up.

    ``global_batch_size == micro_batch_size * gradient_accumulation_steps * world_size``.
    """

    global_batch_size: int
    micro_batch_size: int
    gradient_accumulation_steps: int


@dataclass(frozen=True)
class Optimizer:
    """The optimizer, with every hyper-parameter explicit so that no framework's default rules."""

    name: Literal["adamw", "sgd"] = "adamw"
    """AdamW (decoupled weight decay, Loshchilov & Hutter 2019) or SGD."""
    lr: float = 1e-3
    """Learning rate, constant over the run."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the first and second moment."""
    eps: float = 1e-8
    """AdamW's epsilon."""
    momentum: float = 0.0
    """SGD's momentum."""
    weight_decay: float = 0.0
    """Weight decay of all parameters (decoupled for AdamW, L2 for SGD)."""
    clip_grad_norm: float | None = None
    """Clip the global L2 norm of the gradients to this; null: no clipping."""
    kernel: Literal["fused", "foreach", "loop"] = "fused"
    """Which of torch's implementations steps the parameters, in every strategy alike."""


@dataclass(frozen=True)
class Precision:
    """The dtypes of one step, in every strategy alike."""

    compute: Dtype = "fp32"
    """Dtype of the forward and backward pass."""
    reduce: Dtype = "fp32"
    """Dtype in which gradients are reduced over ranks."""
    master: Dtype = "fp32"
    """Dtype of the parameters that the optimizer updates."""
    optimizer_state: Dtype = "fp32"
    """Dtype of the optimizer's moments."""
    loss_scale: float | None = None
    """Constant loss scale, for fp16 only; a step whose gradients overflow is skipped."""


@dataclass(frozen=True)
class Measure:
    """How a case is measured."""

    warmup: int = 3
    """Steps before the timed window, of each trial."""
    steps: int = 10
    """Timed steps of each trial."""
    trials: int = 3
    """Launches of each case; the launch is the unit of statistics."""
    profile_steps: int = 2
    """Steps under the profiler, after the timed window."""
    keep_traces: bool = False
    """Keep the profiler's trace of every trial (Chrome/Perfetto JSON, gzipped) beside its record;
    false: only of trials in which something looks wrong."""
    unsynced_steps: int = 0
    """Steps at the very end without any reduction of gradients, where the strategy offers that (ddp): a
    second, independent measure of exposed communication."""
    check_steps: int = 1
    """Steps with the gradient norm taken, after those."""
    order: Literal["interleaved", "sequential"] = "interleaved"
    """interleaved: round i of all cases before round i+1, every second round reversed."""


@dataclass(frozen=True)
class Limits:
    """Deadlines in seconds; a trial that passes one ends with status ``hang`` or ``init_timeout``."""

    prepare: float = 900.0
    """Building C++ ops and the initial weights, once a run."""
    start: float = 120.0
    """From the launch to a process group that all ranks have joined."""
    build: float = 600.0
    """Building model, engine and optimizer; saving or loading a checkpoint."""
    step: float = 120.0
    """One step (the first may compile)."""
    trial: float = 3600.0
    """A whole trial."""


@dataclass(frozen=True)
class Case:
    """One cell: workload x strategy x world size x the rest."""

    name: str
    label: str
    """The strategy's short name with its options, e.g. ``zero3+offload``."""
    strategy: Choice
    workload: Choice
    data: Choice
    world_size: int
    device: Device
    batch: Batch
    optimizer: Optimizer
    precision: Precision
    activation_checkpointing: Literal["none", "full"]
    threads: int
    """Intra-op threads of each rank."""
    seed: int

    @functools.cached_property
    def id(self) -> str:
        """Hash of everything that decides the work (ten hex digits); the names don't."""
        names = {field.name for field in dataclasses.fields(self)} - {"name", "label"}
        work = {name: getattr(self, name) for name in names}
        # asdict would copy every part of every case, which a plan of thousands feels
        text = json.dumps(work, sort_keys=True, separators=(",", ":"), default=vars)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def to_json(self) -> dict[str, Any]:
        """Return the case as plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Case:
        """Return the case that ``to_json`` described."""
        plain = dict(data)
        for name in ("strategy", "workload", "data"):
            plain[name] = Choice(**plain[name])
        plain["batch"] = Batch(**plain["batch"])
        plain["precision"] = Precision(**plain["precision"])
        optimizer = dict(plain["optimizer"])
        plain["optimizer"] = Optimizer(**{**optimizer, "betas": tuple(optimizer["betas"])})
        return cls(**plain)
