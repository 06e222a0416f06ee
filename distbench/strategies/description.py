"""What a strategy says of itself for those who read its records: no reader knows a strategy by its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

ZERO_PAPER = "https://arxiv.org/abs/1910.02054"
ALL_STATES = "All model states: with Adam in mixed precision 16 bytes per parameter."
GLOBAL_COUNT = "over the count of the global batch"
"""Of ``loss_mean``, where the loss of a micro-batch is a sum and a count, and ranks add up their counts."""
TAKE_IT = "use it if"
"""What a claim is about that says when a strategy is the right one."""
SPLITS_MODEL = 60
"""``simplicity`` from which on strategies split layers or sequences: behind all that replicate or shard, with
which the model computes as it is written."""
PYTORCH_OVERVIEW = "https://docs.pytorch.org/tutorials/beginner/dist_overview.html"


@dataclass(frozen=True)
class Meaning:
    """What a difference in one setting of ``Engine.effective`` does to a comparison."""

    kind: Literal["work", "speed", "strategy"]
    """work: the numbers belong to different work. speed: the same work at a different pace. strategy: the
    point of the comparison."""
    why: str


@dataclass(frozen=True)
class Deviation:
    """A known reason why an engine moves or keeps more than the theory of its strategy."""

    of: str
    """An operation of ``collectives`` (``all_gather``), a kind of ``model_states`` (``gradients``), or
    ``states``: all kinds, by about the same fraction."""
    why: str
    settings: tuple[str, ...] = ()
    """Keys of ``effective`` whose values explain it."""
    allowed: tuple[str, ...] = ()
    """Keys of ``effective``, in elements, whose sum is the most that it explains in each pass over the
    layers; empty: it explains any amount."""


@dataclass(frozen=True)
class ExpectedCollective:
    """Collectives of one kind that a rank issues in a step by theory."""

    op: str
    """``all_reduce``, ``all_gather``, ... as torch.distributed names them."""
    bytes: float
    """Payload of all of them: full arrays, as nccl-tests counts."""
    dimension: str | None = None
    """Dimension of the device mesh over which they are; None: theory does not say."""
    calls: float | None = None
    """How many; where ranks issue different numbers, the mean over ranks. None: theory does not say, as
    where an engine packs tensors into buckets."""


def by_operation(collectives: Iterable[ExpectedCollective]) -> dict[str, float]:
    """Bytes of *collectives* by operation."""
    sizes: dict[str, float] = {}
    for each in collectives:
        sizes[each.op] = sizes.get(each.op, 0.0) + each.bytes
    return sizes


@dataclass(frozen=True)
class Claim:
    """What a strategy does by theory, in one respect."""

    aspect: str
    """``shards``, ``moves``, ``keeps``, ``offload`` or ``TAKE_IT``."""
    text: str
    source: str = ""
    """URL of the paper or the documentation; empty: it follows from the other claims."""


@dataclass(frozen=True)
class Card:
    """What a strategy shards, moves and keeps in theory, and when to use it."""

    shards: str
    """In two or three words, for a table."""
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class ByDesign:
    """That a strategy is another training by design: how well it trains is a question of convergence."""

    why: str
    """What it does otherwise."""
    since: int = 0
    """First step, from 0 on, whose update is another one: up to there rounding explains every difference."""
    changes_gradients: bool = True
    """Whether the gradients of that step are others as well; False: only what its update makes of them."""
    bounded_from: int = 0
    """First step after which its parameters have moved about as far as those of the reference."""
    bounded_until: int | None = None
    """First step whose update may be of any size; None: there is none."""


@dataclass(frozen=True)
class Description:
    """A strategy with its options, as a record keeps it."""

    settings: Mapping[str, Meaning] = field(default_factory=dict)
    """Meaning of each key of ``effective``; ``a.b`` for a key of its own meaning inside a mapping."""
    simplicity: int = 100
    """Order of preference among statistically tied cases, lowest first."""
    offloads: tuple[str, ...] = ()
    """``cpu`` or ``nvme`` for each option that moves training state off the device."""
    deviations: tuple[Deviation, ...] = ()
    by_design: ByDesign | None = None
    """None: it is meant to be the same training as one process."""

    def of(self, effective: Mapping[str, Any]) -> Description:
        """The same without the settings that *effective* does not report."""
        reported = {key: value for key, value in self.settings.items() if key.split(".")[0] in effective}
        return replace(self, settings=reported)


def points(why: str, *keys: str) -> dict[str, Meaning]:
    """Meaning of *keys* in which strategies differ because that is the point of comparing them."""
    return dict.fromkeys(keys, Meaning("strategy", why))


SHARDING = "what is sharded, and how"
KEEPING = "how long gathered parameters are kept"
PORTIONS = "in what portions it communicates"
TIMING = "when it communicates, and from where"
PLACE = "where the training state lives"

_WORK = {
    "parameters": "different model",
    "trained_parameters": "different model: other parameters are frozen",
    "trainable_tensors": "different model: other parameters are frozen or tied",
    "global_batch_size": "different number of samples per step",
    "optimizer": "different hyper-parameter",
    "optimizer.class": "different optimizer class",
    "optimizer.kernel": "different implementation of the update",
    "optimizer.steps": "different number of updates before the timed window",
    "optimizer.schedule": "different learning-rate schedule",
    "optimizer.next_lr": "different learning rate after the same number of updates",
    "optimizer.variants": "different variant of the algorithm",
    "clip_grad_norm": "different gradient clipping",
    "activation_checkpointing": "recomputes a different part of the forward pass",
    "checkpointed_layers": "recomputes a different part of the forward pass",
    "compile": "runs other kernels, made by torch.compile",
    "compiled_layers": "runs other kernels, made by torch.compile",
    "float8": "multiplies in float8 by another recipe",
    "float8_layers": "multiplies in float8 in other layers",
    "float8_emulated": "emulates float8",
    "loss_scale": "different loss scale",
    "loss_scale_window": "raises a dynamic loss scale after a different number of steps",
    "loss_mean": "another mean: of all that the global batch counts, or of the means of its parts",
    "dtypes": "different dtype",
    "dtypes.compute": "computes in a different dtype",
    "dtypes.gradients": "accumulates gradients in a different dtype",
    "dtypes.reduce": "reduces gradients in a different dtype",
    "dtypes.master": "updates weights of a different dtype",
    "dtypes.optimizer_state": "keeps optimizer states in a different dtype",
}
REMARKS = "remarks"
"""Key of ``effective`` that has sentences, which a reader is shown as they are."""
ENGINE_SETTINGS: Mapping[str, Meaning] = {
    **{key: Meaning("work", why) for key, why in _WORK.items()},
    **points("the strategy itself", "engine"),
    # 16-bit parameters beside fp32 masters are how some frameworks compute in 16 bits
    **points("where a framework keeps its master weights", "dtypes.parameters"),
    **points(
        "how the same samples are divided", "world_size", "micro_batch_size", "gradient_accumulation_steps"
    ),
    **points("how engines run around compiled code", "graph_breaks"),
    **points("what nobody would expect of the strategy", REMARKS),
    **points(PLACE, "parameters_on", "optimizer_state_on"),
}
"""Meaning of the keys of ``effective`` that every engine reports."""
