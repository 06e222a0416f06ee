"""The work of one cell of a suite, with all defaults resolved.

Plain frozen dataclasses: the plan makes them, a trial carries them as JSON, the worker acts on
them, and a record keeps them. The id of a case is a hash of exactly these fields.

A field, or an option of a plug-in, that was added after record format 3 says so: ``field(default=1,
metadata={"since": 4})``. At its default it is left out of the id, so a case keeps the id and the history
that it had before the field existed.
"""

import dataclasses
import fnmatch
import functools
import hashlib
import json
import math
from collections.abc import Collection, Hashable
from dataclasses import MISSING, dataclass, field
from typing import Annotated, Any, Literal

from distbench.core.bounds import Bound, Count, Fraction, Name, Positive
from distbench.core.dtypes import Dtype, Float8Recipe

MAX_WORLD_SIZE = 1_000_000
"""Largest world size of a case: records contain lists of that length."""

CompileMode = Literal["none", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
"""A mode of torch.compile; none: no compilation."""
Device = Literal["cpu", "cuda"]
OptimizerName = Literal["adamw", "adam", "sgd", "adafactor", "muon", "lion", "lamb", "adamw8bit"]

CURRENT_ENVIRONMENT = "current"
"""The Python environment that distbench itself runs in; a suite names others."""

MODEL_STATES = ("parameters", "gradients", "optimizer_state", "master")
"""Model states (ZeRO), which a training keeps between steps: the kinds of memory that have a theory."""

CaseField = Literal[
    "strategy",
    "world_size",
    "batch",
    "batch.micro_batch_size",
    "batch.gradient_accumulation_steps",
    "optimizer.lr",
    "precision",
    "activation_checkpointing",
    "compile",
    "threads",
    "environment",
    "loader",
    "env",
    "engine",
]
"""A field of a case, or of one of its parts, in which compared cases may differ if the caller allows it."""

EXECUTION_FIELDS: tuple[CaseField, ...] = (
    "strategy",
    "batch.micro_batch_size",
    "batch.gradient_accumulation_steps",
    "threads",
    "environment",
    "loader",
    "env",
    "engine",
)
"""Fields that set how a given number of devices does the work; the computed numbers don't depend on them."""

TUNABLE_FIELDS: tuple[CaseField, ...] = (*EXECUTION_FIELDS, "activation_checkpointing", "compile")
"""Fields to choose for a given number of devices: execution, recomputation and compilation."""


@functools.cache
def fields_added_later(cls: Any) -> dict[str, Any]:
    """Fields of the dataclass *cls* that were added since format 3, with their defaults."""
    return {
        f.name: f.default if f.default_factory is MISSING else f.default_factory()
        for f in dataclasses.fields(cls)
        if "since" in f.metadata
    }


def identity_fields(part: Any) -> dict[str, Any]:
    """Fields of the dataclass *part* that decide the id of a case, with their values."""
    cls: Any = type(part)
    defaults = fields_added_later(cls)
    values = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
    return {key: value for key, value in values.items() if key not in defaults or value != defaults[key]}


@dataclass(frozen=True)
class PluginChoice:
    """A plug-in by name, with its options."""

    name: Name
    options: dict[str, Any] = field(default_factory=dict)

    def to_yaml(self) -> dict[str, Any]:
        """The plug-in as a suite has it in YAML."""
        return {self.name: self.options}


NATIVE_ENGINE = PluginChoice("native")
"""distbench's own steps on a strategy's objects, without another framework."""


@dataclass(frozen=True)
class Batch:
    """Division of the samples of one optimizer step.

    ``global_batch_size == micro_batch_size * gradient_accumulation_steps * ranks with rows of their own``:
    those are all ranks, or fewer where some split the model and share rows.
    """

    global_batch_size: Annotated[int, Bound(1, 2**53)]
    micro_batch_size: Count
    gradient_accumulation_steps: Count

    @property
    def total_micro_batches(self) -> int:
        """Micro-batches of all ranks in a step."""
        return self.global_batch_size // self.micro_batch_size


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer, with every hyperparameter explicit so that no framework default applies."""

    name: OptimizerName = "adamw"
    """AdamW (decoupled weight decay, Loshchilov & Hutter 2019), Adam, SGD, Adafactor, Lion, LAMB, or Muon for
    the matrices of the model's layers and AdamW for the rest; adamw8bit is AdamW with moments in 8 bits.
    Lion and LAMB need pytorch-optimizer, adamw8bit torchao."""
    lr: Positive = 1e-3
    """Learning rate; with a schedule the largest of it."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """Decay rates of the first and second moment of AdamW, Adam and LAMB; of Lion's update and momentum."""
    eps: Positive = 1e-8
    """Epsilon of AdamW, Adam and LAMB, and the first of Adafactor's."""
    momentum: Fraction = 0.0
    """Momentum of SGD, and of Muon, where it is 0.95 by default."""
    weight_decay: Annotated[float, Bound(0)] = 0.0
    """Weight decay of all parameters: L2 for Adam and SGD, part of the update that LAMB scales, decoupled for
    the others."""
    clip_grad_norm: Positive | None = None
    """Clip the global L2 norm of the gradients to this; null: no clipping."""
    kernel: Literal["fused", "foreach", "loop"] = "fused"
    """Implementation of the parameter update, the same in every strategy. Adafactor, Lion and LAMB have no
    fused one, so that they are foreach by default, and Muon has only the loop."""
    schedule: Literal["constant", "linear", "cosine", "wsd", "inverse_sqrt"] = field(
        default="constant", metadata={"since": 4}
    )
    """Schedule of the learning rate after its warm-up: linear and cosine fall until total_steps, wsd
    (warmup-stable-decay) over the last decay_steps of them, inverse_sqrt with the number of updates."""
    warmup_steps: Annotated[int, Bound(0)] = field(default=0, metadata={"since": 4})
    """Updates over which the learning rate rises linearly, the first of them included."""
    total_steps: Annotated[int, Bound(1)] | None = field(default=None, metadata={"since": 4})
    """Update at which linear, cosine and wsd have fallen to final_lr_fraction, where they stay. That of the
    real training: what is timed or checked is its beginning. Only those have it, and need it."""
    decay_steps: Annotated[int, Bound(1)] | None = field(default=None, metadata={"since": 4})
    """Updates over which wsd falls, the last of total_steps. Only wsd has it, and needs it."""
    final_lr_fraction: Annotated[float, Bound(0, 1)] = field(default=0.0, metadata={"since": 4})
    """Fraction of the learning rate that linear, cosine and wsd end with."""


NO_OPTIMIZER = "none of torch"
"""Name of the optimizer of a measured script that updates by itself."""


@dataclass(frozen=True)
class ObservedOptimizer(OptimizerConfig):
    """An optimizer that a measured script has, and that no suite can name."""

    name: Any = ""
    """Name of its class."""


@dataclass(frozen=True)
class PrecisionConfig:
    """The dtypes of one step, the same in every strategy."""

    compute: Dtype = "fp32"
    """Dtype of the forward and backward pass."""
    reduce: Dtype = "fp32"
    """Dtype in which gradients are reduced across ranks."""
    master: Dtype = "fp32"
    """Dtype of the parameters that the optimizer updates."""
    optimizer_state: Dtype = "fp32"
    """Dtype of the optimizer's moments."""
    loss_scale: Positive | Literal["dynamic"] | None = None
    """Loss scale, only for fp16: a constant, by default 1024 (null: none), or dynamic. A step whose gradients
    overflow is skipped."""
    matmul: Literal["highest", "high"] = field(default="highest", metadata={"since": 4})
    """Precision of fp32 matrix products, convolutions and RNNs (torch.set_float32_matmul_precision,
    torch.backends.cudnn.allow_tf32); high: TF32 on GPUs that support it, with 10 bits instead of 23. Set in
    every rank, whatever a container has for a default."""

    float8: Float8Recipe = field(default="none", metadata={"since": 4})
    """Recipe of torchao by which the linear layers inside the model's layers multiply in float8; all else is
    in compute: bf16. tensorwise: one scale a matrix, the fastest; rowwise: one a row, closer to bf16;
    rowwise_with_gw_hp: that, with the gradients of weights in bf16."""
    float8_emulated: bool = field(default=False, metadata={"since": 4})
    """Round to float8 and multiply in fp32, on any device: to check a training where no GPU knows float8.
    Such a case is not timed."""

    initial_scale_power: Annotated[int, Bound(0, 32)] = field(default=16, metadata={"since": 4})
    """A dynamic loss scale begins with 2 to this power, and is halved when gradients overflow."""
    loss_scale_window: Count = field(default=1000, metadata={"since": 4})
    """Steps in a row without an overflow after which a dynamic loss scale is doubled."""

    @property
    def is_scaled_dynamically(self) -> bool:
        """True if the loss scale follows the gradients."""
        return self.loss_scale == "dynamic"

    @property
    def first_loss_scale(self) -> float | None:
        """Loss scale of the first step; None: losses are not scaled."""
        return 2.0**self.initial_scale_power if self.loss_scale == "dynamic" else self.loss_scale

    @property
    def label(self) -> str:
        """``bf16``: dtype of the computation, or what it multiplies in: ``tf32``, ``float8-rowwise``."""
        if self.float8 != "none":
            recipe = "" if self.float8 == "tensorwise" else f"-{self.float8}"
            return f"float8{recipe}{'-emulated' if self.float8_emulated else ''}"
        return "tf32" if (self.compute, self.matmul) == ("fp32", "high") else self.compute


@dataclass(frozen=True)
class LoaderConfig:
    """torch's DataLoader in the timed steps. Its settings change the speed, and no row."""

    workers: Annotated[int, Bound(0, 1024)] | None = None
    """Worker processes of each rank that make micro-batches (DataLoader's num_workers); 0: the rank makes
    them itself when it needs them; null: no loader, the batches of a GPU's timed steps are made before
    them."""
    pin_memory: bool = False
    """Copy batches to pinned memory in a thread of the rank. Only with GPUs."""
    prefetch_factor: Count = 2
    """Micro-batches that each worker makes ahead of time."""
    persistent_workers: bool = False
    """Keep workers at the end of an epoch; false: they start again for the next one."""

    def settling_steps(self, gradient_accumulation_steps: int) -> int:
        """Steps until a loader that is waited for has used up what its workers had ready after step 1.

        0 without workers.
        """
        ahead = (self.workers or 0) * self.prefetch_factor
        return 1 + math.ceil(ahead / gradient_accumulation_steps) if ahead else 0


@dataclass(frozen=True)
class Case:
    """One cell: workload x strategy x world size x the rest."""

    name: Name
    label: Name
    """The strategy's short name with its options, e.g. ``zero3+offload``."""
    strategy: PluginChoice
    workload: PluginChoice
    data: PluginChoice
    world_size: Annotated[int, Bound(1, MAX_WORLD_SIZE)]
    device: Device
    batch: Batch
    optimizer: OptimizerConfig | ObservedOptimizer
    precision: PrecisionConfig
    activation_checkpointing: Literal["none", "selective", "full"]
    threads: Count
    """Intra-op threads per rank."""
    seed: int
    initial_weights: Literal["exact", "drawn"] = field(default="exact", metadata={"since": 4})
    """exact: as the model's constructor draws them one after another. drawn: from the same distributions, but
    each element by its tensor's name and its index, so a rank draws only what it keeps."""
    compile: CompileMode = field(default="none", metadata={"since": 4})
    """Mode of torch.compile for each layer; all else runs eagerly."""
    environment: Name = field(default=CURRENT_ENVIRONMENT, metadata={"since": 4})
    """Name of the Python environment that its processes run in, as the suite calls it."""
    loader: LoaderConfig = field(default=LoaderConfig(), metadata={"since": 4})
    """How batches reach its ranks in the timed steps."""
    env: dict[str, str] = field(default_factory=dict, metadata={"since": 4})
    """Environment variables of its ranks, besides those that distbench sets and the inherited ones."""
    engine: PluginChoice = field(default=NATIVE_ENGINE, metadata={"since": 4})
    """Framework that wraps the model of the strategy and takes the steps."""

    @functools.cached_property
    def id(self) -> str:
        """Hash of everything that defines the work, without the names (ten hex digits)."""
        # asdict would copy every part of every case, which is slow for a plan of thousands
        decides = {key: value for key, value in identity_fields(self).items() if key not in _NAME_FIELDS}
        text = json.dumps(decides, sort_keys=True, separators=(",", ":"), default=identity_fields)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def depends_on_batch_division(self) -> bool:
        """True if the workload declares that its training depends on how a batch is divided.

        BatchNorm then takes the statistics of one micro-batch of one rank.
        """
        return self.workload.options.get("batch_norm") == "per_rank"

    def matches(self, glob: str) -> bool:
        """True if *glob* matches the label, the name, or its first parts: ``ddp``, ``*/ws2``."""
        whole = any(fnmatch.fnmatchcase(text, glob) for text in (self.name, self.label))
        return whole or fnmatch.fnmatchcase(self.name, f"{glob}/*")

    def work_key(self, ignoring: Collection[CaseField] = ()) -> tuple[tuple[str, Hashable], ...]:
        """Requested work of the case without the axes *ignoring*, as pairs of axis and value.

        Equal for two cases that request the same work, whatever their values on those axes.
        """
        relaxed: Collection[str] = ignoring
        return tuple(
            (axis, value)
            for axis, value in self._work_items
            if axis not in relaxed and axis.partition(".")[0] not in relaxed
        )

    @functools.cached_property
    def _work_items(self) -> tuple[tuple[str, Hashable], ...]:
        axes: list[tuple[str, Hashable]] = []
        for name in (f.name for f in dataclasses.fields(self) if f.name not in _NAME_FIELDS):
            value = getattr(self, name)
            if isinstance(value, PluginChoice):
                axes.append((name, (value.name, json.dumps(value.options, sort_keys=True))))
            elif dataclasses.is_dataclass(value):
                axes += [(f"{name}.{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value)]
            elif isinstance(value, dict):
                axes.append((name, tuple(sorted(value.items()))))
            else:
                axes.append((name, value))
        return tuple(axes)

    def to_json(self) -> dict[str, Any]:
        """The case as plain JSON types."""
        return dataclasses.asdict(self)


_NAME_FIELDS = ("name", "label")
