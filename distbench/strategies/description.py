"""Facts about a strategy that records store, so that readers need no plug-in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from distbench.core.case import Case

GLOBAL_COUNT_TEXT = "over the count of the global batch"
"""Value of ``loss_mean`` if the loss of a micro-batch is a sum and a count, and ranks add up their counts."""
SIMPLICITY_OF_MODEL_PARALLELISM = 60
"""``simplicity`` from which on strategies split layers or sequences. They come after all that replicate or
shard, which leave the model's computation as it is written."""


@dataclass(frozen=True)
class SettingMeaning:
    """Meaning of a difference in one setting of ``Engine.effective_settings`` for a comparison."""

    kind: Literal["work", "speed", "strategy"]
    """work: the results are of different work. speed: the same work at a different speed. strategy: the point
    of the comparison."""
    why: str


@dataclass(frozen=True)
class ExcessCause:
    """A known reason why an engine communicates or stores more than the theory of its strategy."""

    of: str
    """An operation of ``collectives`` (``all_gather``), a kind of model state (``gradients``), or ``states``:
    all kinds, by about the same fraction."""
    why: str
    settings: tuple[str, ...] = ()
    """Keys of ``effective`` whose values explain it."""
    allowed: tuple[str, ...] = ()
    """Keys of ``effective``, in elements; their sum is the maximum that it explains in each pass over the
    layers. Empty: it explains any amount."""


@dataclass(frozen=True)
class CallCount:
    """Calls of a collective in a step of a rank; None: unknown."""

    calls: float | None = None
    synchronizations: float | None = None
    """``ExpectedCollective.synchronizations`` of them."""


UNKNOWN_CALLS = CallCount()


@dataclass(frozen=True)
class ExpectedCollective:
    """Collectives of one kind that a rank should issue in a step."""

    op: str
    """``all_reduce``, ``all_gather``, ... as torch.distributed names them."""
    bytes: float
    """Payload of all of them: full arrays, as nccl-tests counts."""
    dimension: str | None = None
    """Dimension of the device mesh over which they are; None: theory does not say."""
    calls: float | None = None
    """Number of calls; if it differs among ranks, the mean over ranks. None: theory does not say, for example
    because an engine packs tensors into buckets."""
    synchronizations: float | None = None
    """Number of those calls before which the rank has multiplied matrices since the collective before it, of
    any kind, or that are the first of a step. The sum over all collectives is the number of times that ranks
    wait for each other: calls that follow one another wait once. None: theory does not say."""
    issued_as: str | None = None
    """Operation that the engine calls in its place, with the same payload; None: ``op``."""
    still_gathered_bytes: float | None = None
    """Of an all-gather of parameters, the bytes that forward and backward passes need besides, but that stay
    gathered from the pass before. None: theory does not say."""


@dataclass(frozen=True)
class RankPasses:
    """Forward and backward passes of a rank in an optimizer step."""

    count: int
    """Number of forward passes, each with its backward pass."""
    samples: float
    """Samples of one pass; of those that several ranks split by position or inside the layers, a share."""
    layer_share: float = 1.0
    """Fraction of the model's layers that the rank has."""
    bubble: float | None = 0.0
    """Fraction of the step in which it waits for other pipeline stages; None: theory does not say."""


@dataclass(frozen=True)
class TracedStep:
    """Training step on fake tensors, which need no memory, that takes as much memory as one of a rank."""

    case: Case
    """Case whose engine is traced; its strategy may be a simpler one."""
    gradient_copies: int = 0
    """Copies of all gradients that exist besides, at any time (the buckets of DDP)."""


@dataclass(frozen=True)
class IntendedDifference:
    """Declared difference of a strategy's training from the reference (*differs by design*)."""

    why: str
    """Description of the difference."""
    since: int = 0
    """First step (from 0) whose update differs; before it, rounding explains every difference."""
    changes_gradients: bool = True
    """True if the gradients of that step differ as well; False if only its update does."""
    bounded_from: int = 0
    """First step after which its parameters have moved about as far as those of the reference."""
    bounded_until: int | None = None
    """First step whose update may be of any size; None: there is none."""


@dataclass(frozen=True)
class StrategyDescription:
    """A strategy with its options, as a record stores it."""

    settings: Mapping[str, SettingMeaning] = field(default_factory=dict)
    """Meaning of each key of ``effective``; ``a.b`` for a key inside a mapping that has a meaning of its
    own."""
    simplicity: int = 100
    """Order of preference among statistically tied cases, lowest first."""
    offloads: tuple[str, ...] = ()
    """``cpu`` or ``nvme`` for each option that moves training state off the device."""
    deviations: tuple[ExcessCause, ...] = ()
    by_design: IntendedDifference | None = None
    """Declared difference of the training; None: it must equal one process."""

    def limited_to(self, effective: Mapping[str, Any]) -> StrategyDescription:
        """The same description, without the settings that *effective* does not report."""
        reported = {key: value for key, value in self.settings.items() if key.split(".")[0] in effective}
        return replace(self, settings=reported)


def strategy_settings(why: str, *keys: str) -> dict[str, SettingMeaning]:
    """Meaning of *keys* in which strategies differ because that is the point of the comparison."""
    return dict.fromkeys(keys, SettingMeaning("strategy", why))


SHARDING = "what is sharded, and how"
RESHARDING = "lifetime of gathered parameters"
GRANULARITY = "size of its messages"
OVERLAP = "time and origin of its communication"
PLACEMENT = "location of the training state"

_WORK_SETTINGS = {
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
    "compile": "runs different kernels, generated by torch.compile",
    "compiled_layers": "runs different kernels, generated by torch.compile",
    "float8": "multiplies in float8 with a different recipe",
    "float8_layers": "multiplies in float8 in different layers",
    "float8_emulated": "emulates float8",
    "loss_scale": "different loss scale",
    "loss_scale_window": "raises a dynamic loss scale after a different number of steps",
    "loss_mean": "different mean: over the count of the global batch, or over the means of its parts",
    "dtypes": "different dtype",
    "dtypes.compute": "computes in a different dtype",
    "dtypes.gradients": "accumulates gradients in a different dtype",
    "dtypes.reduce": "reduces gradients in a different dtype",
    "dtypes.master": "updates weights of a different dtype",
    "dtypes.optimizer_state": "keeps optimizer states in a different dtype",
}
REMARKS = "remarks"
"""Key of ``effective`` that contains sentences, which are shown to readers unchanged."""
ENGINE_SETTINGS: Mapping[str, SettingMeaning] = {
    **{key: SettingMeaning("work", why) for key, why in _WORK_SETTINGS.items()},
    **strategy_settings("the strategy itself", "engine"),
    # some frameworks compute in 16 bits with 16-bit parameters beside fp32 master weights
    **strategy_settings("location of the master weights", "dtypes.parameters"),
    **strategy_settings(
        "division of the same samples", "world_size", "micro_batch_size", "gradient_accumulation_steps"
    ),
    **strategy_settings("engine hooks around compiled code", "graph_breaks"),
    **strategy_settings("unexpected behaviour of the strategy", REMARKS),
    **strategy_settings(PLACEMENT, "parameters_on", "optimizer_state_on"),
}
"""Meaning of the keys of ``effective`` that every engine reports."""
