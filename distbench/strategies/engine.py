"""Interface of a live training on one rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from distbench.core.case import MODEL_STATES

if TYPE_CHECKING:
    import torch
    from torch import nn

T = TypeVar("T")


@dataclass(frozen=True)
class TrainingState:
    """Full training state on the CPU, under the plain module's names; any strategy can resume from it.

    Rank 0 has all of it; the others may have nothing.
    """

    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    """Parameters as the optimizer updates them (master weights, if any); tied parameters under the first
    name."""
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    optimizer: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    """Parameter -> torch's names of its optimizer state: for AdamW ``exp_avg``, ``exp_avg_sq`` (with the
    parameter's shape) and ``step`` (a scalar), for SGD and Muon ``momentum_buffer``, for Adafactor
    ``row_var`` and ``col_var`` (means of rows and columns) or ``variance``; nothing for SGD without
    momentum."""
    scheduled_updates: int = 0
    """Updates that a learning-rate schedule has counted; 0 without one."""


MEMORY_KINDS = (*MODEL_STATES, "buffers")
"""The kinds that ``Engine.memory_by_kind`` reports."""

SpanMarker = Callable[[str], AbstractContextManager[Any]]


class Engine(ABC):
    """The minimum that a training loop needs, the same for every strategy.

    A step is ``gradient_accumulation_steps`` calls of ``forward_backward`` and one ``step``.
    """

    span: SpanMarker = nullcontext
    """``with self.span("forward")`` marks a part of a step: ``forward``, ``backward`` or ``optimizer``. In a
    pipeline, further spans around these mark the pass of a stage in torch's notation: ``2F5`` is stage 2,
    forward, micro-batch 5; ``B`` a full backward pass, ``I`` and ``W`` its halves, for the input and for the
    weights. The worker replaces it in every pass and job; it does nothing before the timed window ends."""

    updates_in_backward: ClassVar[bool] = False
    """True if ``forward_backward`` updates the parameters, and frees each gradient, before it returns."""
    retain_gradients: bool = False
    """True if gradients of the next step will be requested before ``step``. The caller sets it, never for a
    timed step; an engine that frees gradients earlier then keeps copies."""

    @property
    @abstractmethod
    def framework_engine(self) -> object:
        """The framework's own object (``DistributedDataParallel``, ``DeepSpeedEngine``, ...)."""

    @abstractmethod
    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Run one micro-batch forward and backward; return its mean loss, detached, unscaled.

        Gradients accumulate so that a full step yields the mean over the global batch.
        """

    @abstractmethod
    def step(self) -> None:
        """Clip if requested, update the parameters, and end the accumulation."""

    @abstractmethod
    def grad_norm(self) -> float:
        """Global L2 norm of the accumulated and reduced gradients, before clipping.

        Collective call: every rank calls it, between the last ``forward_backward`` of a step and ``step``.
        Never called in the ``time`` pass.
        """

    def full_gradients(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Plain name and full reduced gradient of every trained parameter, on its device.

        The mean over the global batch, before clipping, without a loss scale. They are yielded one after
        another, so that no rank has to hold all: each is valid until the next is requested. Every rank
        iterates over all of them, at the same point as ``grad_norm``, because gathering one is a collective
        call; rank 0 gets all of them, the others may get nothing.

        Raises:
            NotImplementedError: they can't be gathered; the message is the reason.
        """
        raise NotImplementedError(f"{type(self).__name__} can't gather its gradients")

    @abstractmethod
    def full_parameters(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Plain name and full value of every parameter; see ``full_gradients``.

        As the optimizer updates them: master weights, if any.

        Raises:
            NotImplementedError: they can't be gathered; the message is the reason.
        """

    def buffers(self) -> dict[str, torch.Tensor]:
        """Every buffer of this rank's module, on the CPU, by plain name; nothing is gathered.

        Raises:
            NotImplementedError: the engine of a plug-in does not report buffers; the message is the reason.
        """
        raise NotImplementedError(f"{type(self).__name__} does not provide its buffers")

    def evaluate(self, score: Callable[[nn.Module], T]) -> T:
        """``score(module)`` with the module in evaluation mode and without gradients.

        *score* gets the module that ``forward_backward`` calls, with all wrappers. Collective call, between
        steps: every rank calls the module equally often. Never called in the ``time`` pass.

        Raises:
            NotImplementedError: the engine of a plug-in does not support it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no evaluation; implement Engine.evaluate")

    @property
    def skipped_steps(self) -> int:
        """Number of steps skipped because gradients overflowed under the loss scale."""
        return 0

    @property
    def has_equal_replicas(self) -> bool:
        """True if ranks that hold the same parameters should have equal copies now.

        Between two averages of local SGD they should not, and ``full_parameters`` differs from the copy of a
        rank.
        """
        return True

    def without_communication(self) -> AbstractContextManager[Any] | None:
        """Context in which steps communicate nothing at all; None if the strategy has none.

        If the optimizer communicates as well, it is not enough to disable the reduction of gradients.
        Replicas diverge inside the context, so it is used last: the time saved per step is an independent
        measure of exposed communication.
        """
        return None

    def unsharded_elements(self) -> int:
        """Elements of sharded parameters that are currently gathered on this rank.

        Already gathered parameters are not gathered again, which explains why a step gathers less than in
        theory. 0 if nothing is sharded.
        """
        return 0

    @abstractmethod
    def effective_settings(self) -> dict[str, Any]:
        """Settings that the live engine uses, read back from its objects.

        Keys that every engine reports: ``world_size``, ``parameters`` (count), ``optimizer`` (``class``,
        ``kernel`` and hyper-parameters), ``dtypes`` (``parameters``, ``compute``, ``gradients``, ``reduce``:
        None if nothing is reduced, ``master``, ``optimizer_state``), ``clip_grad_norm``, ``loss_scale`` (None
        if it changes nothing), ``global_batch_size``, ``micro_batch_size``, ``gradient_accumulation_steps``,
        ``activation_checkpointing``. A strategy may add further keys; ``Strategy.settings`` has their meaning
        for a fair comparison. ``remarks``, a list, has a sentence on each unexpected behavior. Called after
        steps, never before the first: optimizers create their state in it. In a measured trial that is after
        the timed window, so that it does not reveal when timing begins.
        """

    def save_sharded(self, folder: Path) -> None:
        """Write parameters and optimizer state in shards, in the framework's own format.

        Collective call between two steps. *folder* exists, is empty, and is visible to all ranks.

        Raises:
            NotImplementedError: this engine has no such format; the message is the reason.
        """
        raise NotImplementedError(f"{type(self).__name__} saves no checkpoints")

    def load_sharded(self, folder: Path) -> None:
        """Load the files that ``save_sharded`` wrote. Collective call.

        They are of the same strategy at the same world size, or of any with the same
        ``Strategy.checkpoint_format``.

        Raises:
            NotImplementedError: this engine has no such format; the message is the reason.
        """
        raise NotImplementedError(f"{type(self).__name__} loads no checkpoints")

    def gather_state(self) -> TrainingState:
        """Gather the full training state; collective call between two steps.

        Raises:
            NotImplementedError: it can't be gathered; the message is the reason.
        """
        raise NotImplementedError(f"{type(self).__name__} can't gather its full state")

    def scatter_state(self, state: TrainingState) -> None:
        """Resume from a gathered *state* of any strategy; collective call, every rank has all of it.

        Raises:
            NotImplementedError: it can't be loaded; the message is the reason.
        """
        raise NotImplementedError(f"{type(self).__name__} can't load a full state")

    def memory_by_kind(self) -> dict[str, int] | None:
        """Bytes of this rank's live tensors by kind, at this moment; None if the engine does not report them.

        Keys: ``MEMORY_KINDS``, of which ``master`` are weights that the optimizer updates and that are not
        the parameters themselves, and ``buffers`` are communication buckets and gathered copies of sharded
        parameters; and ``host``, the part of their sum that is in host memory although the rank computes on a
        GPU. Read from live objects by storage, each counted once. Never called in the ``time`` pass.
        """
        return None

    def close(self) -> None:  # noqa: B027 - nothing to release is a fair default
        """Release what must not outlive the engine."""


class NoCheckpoints(Engine):
    """An engine whose state no checkpoint can contain in full."""

    @property
    @abstractmethod
    def checkpoint_problem(self) -> str:
        """Reason why it has no checkpoint."""

    def save_sharded(self, folder: Path) -> None:
        raise NotImplementedError(self.checkpoint_problem)

    def load_sharded(self, folder: Path) -> None:
        raise NotImplementedError(self.checkpoint_problem)

    def gather_state(self) -> TrainingState:
        raise NotImplementedError(self.checkpoint_problem)

    def scatter_state(self, state: TrainingState) -> None:
        raise NotImplementedError(self.checkpoint_problem)
