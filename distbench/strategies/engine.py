"""The engine of a strategy: what a training loop needs of the live object that trains on this rank."""

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
    """A whole training under the plain module's names, on the CPU: any strategy can resume from it.

    Rank 0 has it all, the others may have nothing.
    """

    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    """As the optimizer updates them (master weights where there are some); of tied ones the first name."""
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    optimizer: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    """Parameter -> torch's names of its optimizer state: ``exp_avg``, ``exp_avg_sq`` (of the parameter's
    shape) and ``step`` (a number) of AdamW, ``momentum_buffer`` of SGD and Muon, ``row_var`` and ``col_var``
    (of a row's or a column's means) or ``variance`` of Adafactor; none of SGD without momentum."""
    scheduled_updates: int = 0
    """Updates that a learning-rate schedule has counted; 0 without one."""


MEMORY_KINDS = (*MODEL_STATES, "buffers")
"""The kinds that ``Engine.memory_by_kind`` reports."""

SpanMarker = Callable[[str], AbstractContextManager[Any]]


class Engine(ABC):
    """The least that a training loop needs, the same for every strategy.

    A step is ``gradient_accumulation_steps`` calls of ``forward_backward`` and one ``step``.
    """

    span: SpanMarker = nullcontext
    """``with self.span("forward")``: marks the part of a step, ``forward``, ``backward`` or
    ``optimizer``, and around those of a pipeline the pass of a stage as torch writes it: ``2F5`` is stage 2,
    forward, micro-batch 5; ``B`` a whole backward pass, ``I`` and ``W`` its halves, for the input and for the
    weights. The worker's own in every pass and job; it does nothing before the timed window ends."""

    updates_in_backward: ClassVar[bool] = False
    """Whether ``forward_backward`` updates the parameters, and frees each gradient, before it returns."""
    retain_gradients: bool = False
    """Whether gradients of the next step will be asked for before ``step``. Set by who asks, never for a step
    that is timed; an engine that frees them earlier keeps copies then."""

    @property
    @abstractmethod
    def framework_engine(self) -> object:
        """The framework's own object (``DistributedDataParallel``, ``DeepSpeedEngine``, ...)."""

    @abstractmethod
    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Run one micro-batch forward and backward; return its mean loss, detached, unscaled.

        Gradients accumulate so that a whole step leaves the mean over the global batch.
        """

    @abstractmethod
    def step(self) -> None:
        """Clip if asked to, update the parameters, and end the accumulation."""

    @abstractmethod
    def grad_norm(self) -> float:
        """Global L2 norm of the accumulated and reduced gradients, before clipping.

        A collective call: every rank calls it, between the last ``forward_backward`` of a step
        and ``step``. Never called in the ``time`` pass.
        """

    def full_gradients(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Plain name and whole reduced gradient of every trained parameter, gathered where they are.

        The mean over the global batch, before clipping, without a loss scale. One after another, so that
        no rank need hold all: each is valid until the next is asked for. Every rank goes through all of them,
        at the same moment as ``grad_norm``, as to gather one is a collective call; rank 0 gets them all, the
        others may get nothing.

        Raises:
            NotImplementedError: they can't be gathered; the message is the reason.
        """
        raise NotImplementedError(f"{type(self).__name__} can't gather its gradients")

    @abstractmethod
    def full_parameters(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Name and whole value of every parameter, under the plain module's names; see ``full_gradients``.

        As the optimizer updates them: master weights where there are some.

        Raises:
            NotImplementedError: it can't be gathered; the message is the reason.
        """

    def buffers(self) -> dict[str, torch.Tensor]:
        """Every buffer of this rank's module, on the CPU, by plain name; nothing is gathered.

        Raises:
            NotImplementedError: the engine of a plug-in that shows none; the message is the reason.
        """
        raise NotImplementedError(f"{type(self).__name__} does not show its buffers")

    def evaluate(self, score: Callable[[nn.Module], T]) -> T:
        """``judge(module)`` with the module in evaluation mode and no gradients kept.

        *module* is what ``forward_backward`` calls, wrappers and all. A collective call, between
        steps: every rank calls the module equally often. Never called in the ``time`` pass.

        Raises:
            NotImplementedError: the engine of a plug-in that offers no such call.
        """
        raise NotImplementedError(f"{type(self).__name__} has no evaluation; implement Engine.evaluate")

    @property
    def skipped_steps(self) -> int:
        """How many steps were not taken because gradients overflowed under the loss scale."""
        return 0

    @property
    def has_equal_replicas(self) -> bool:
        """Whether ranks that keep the same parameters should have equal copies now: between two averages of
        local SGD they should not, and ``full_parameters`` is something else than the copy of a rank."""
        return True

    def without_communication(self) -> AbstractContextManager[Any] | None:
        """Context in which steps communicate nothing at all; None if the strategy has none.

        Without the reduction of gradients alone it is none, if the optimizer communicates as well. Ranks
        train apart in it, so it comes after all else: the step that it saves time on is an independent
        measure of exposed communication.
        """
        return None

    def unsharded_elements(self) -> int:
        """Elements of sharded parameters that are gathered on this rank at this moment.

        What is already gathered is not gathered again, which explains why a step gathers less than in
        theory. 0 where nothing is sharded.
        """
        return 0

    @abstractmethod
    def effective_settings(self) -> dict[str, Any]:
        """Settings that the live engine uses, read back from its objects.

        Keys that every engine gives: ``world_size``, ``parameters`` (count), ``optimizer``
        (``class``, ``kernel`` and hyper-parameters), ``dtypes`` (``parameters``, ``compute``,
        ``gradients``, ``reduce``: None where nothing is reduced, ``master``, ``optimizer_state``),
        ``clip_grad_norm``, ``loss_scale`` (None where it changes nothing), ``global_batch_size``,
        ``micro_batch_size``, ``gradient_accumulation_steps``, ``activation_checkpointing``; more where
        the strategy has more to say, and ``Strategy.settings`` what that means for a fair comparison.
        ``remarks``, a list, has a sentence on each thing that a reader would not expect of the strategy.
        Called after steps, never before the first: optimizers make their state in it. In a measured
        trial that is after the timed window, so that it tells nobody where timing begins.
        """

    def save_sharded(self, folder: Path) -> None:
        """Write parameters and optimizer state in shards, in the framework's own format.

        A collective call between two steps. *folder* exists, is empty, and is seen by all ranks.

        Raises:
            NotImplementedError: this engine has no such format; the message is the reason.
        """
        raise NotImplementedError(f"{type(self).__name__} saves no checkpoints")

    def load_sharded(self, folder: Path) -> None:
        """Load what ``save_sharded`` wrote, a collective call: of the same strategy at the same world size,
        or of any whose ``Strategy.checkpoint_format`` is the same.

        Raises:
            NotImplementedError: this engine has no such format; the message is the reason.
        """
        raise NotImplementedError(f"{type(self).__name__} loads no checkpoints")

    def gather_state(self) -> TrainingState:
        """Whole state of this training, gathered; a collective call between two steps.

        Raises:
            NotImplementedError: it can't be gathered; the message is the reason.
        """
        raise NotImplementedError(f"{type(self).__name__} can't gather its full state")

    def scatter_state(self, state: TrainingState) -> None:
        """Go on from *state*, whichever strategy gathered it; a collective call, every rank has it all.

        Raises:
            NotImplementedError: it can't be spread; the message is the reason.
        """
        raise NotImplementedError(f"{type(self).__name__} can't spread a full state")

    def memory_by_kind(self) -> dict[str, int] | None:
        """Bytes of this rank's live tensors by kind, at this moment; None if the engine does not report them.

        Keys: ``MEMORY_KINDS``, where ``master`` are weights that the optimizer updates and that are
        not the parameters themselves, and ``buffers`` are buckets of communication and gathered
        copies of sharded parameters; and ``host``, the part of their sum that is in host
        memory though the rank computes on a GPU. Read from live objects by storage, each once.
        Never called in the ``time`` pass.
        """
        return None

    def close(self) -> None:  # noqa: B027 - nothing to release is a fair default
        """Release what must not outlive the engine."""
