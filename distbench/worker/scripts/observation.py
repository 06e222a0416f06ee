"""Observe the parts of a script's steps: loaders, models, backward passes, optimizers and loss scalers."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from distbench.worker.scripts.gradient_norms import GradientNorms, Wrapper
from distbench.worker.scripts.script_batches import BatchSize, batch_size, batch_tensor, row_hashes
from distbench.worker.scripts.span_clock import SpanClock

_HASHED_BATCHES = 4

Around = Callable[[str], AbstractContextManager[Any]]


class Observation:
    """Record of the current steps; what it puts into torch and the script is gone after ``remove``."""

    def __init__(self, clock: SpanClock, on_fault: Callable[[Exception], None]) -> None:
        """Observe nothing yet; *on_fault* is called with an error of the observation itself."""
        self._clock, self._on_fault = clock, on_fault
        self._undo: list[Callable[[], None]] = []
        self._open: dict[str, tuple[Callable[[], None], AbstractContextManager[Any] | None]] = {}
        self._thread = threading.get_ident()
        self._in_backward = False
        self._scalers: list[Any] = []
        self._updates = 0
        self._updates_at_backward = 0
        self._after_update: Any = None
        self.around: Around | None = None
        """Context around a part of a step; None: none, as in timed steps."""
        self.backward_passes = 0
        """Backward passes so far."""
        self.accumulations = 0
        """Sequences of backward passes so far, without an update inside: each is one set of gradients."""
        self.losses: list[torch.Tensor] = []
        """Losses of the last of these sequences in this step: those of a critic are of another kind."""
        self.loaded: list[BatchSize] = []
        """Batches that loaders gave in this step."""
        self.given: list[BatchSize] = []
        """Inputs of the models that are trained, in this step."""
        self.rows: list[list[str]] = []
        """Hashes of the rows of the first batches."""
        self.norms = GradientNorms()
        """Gradient norms that the script computes in this step."""
        self.autocast: torch.dtype | None = None
        """Dtype of autocast in the last forward pass of a training step; None: it was off."""

    def next_step(self) -> None:
        """Begin the next step."""
        self.losses, self.loaded, self.given, self.norms.found = [], [], [], []
        self._clock.next_step()

    def install(
        self,
        models: list[torch.nn.Module],
        scalers: list[Any],
        on_update: Callable[[Any], None],
        on_skipped: Callable[[], None],
    ) -> None:
        """Observe from now on.

        Args:
            on_update: Called with an optimizer after its update.
            on_skipped: Called after an update that a loss scaler has skipped.
        """
        self._scalers = [scaler for scaler in scalers if scaler.is_enabled()]
        loaders = torch.utils.data.dataloader._BaseDataLoaderIter
        self._replace(loaders, "__next__", self._loader_next)
        self._replace(torch.autograd, "backward", self._backward)
        self.norms.install(self._replace)
        for model in models:
            # a compiled forward pass would be compiled again with hooks inside
            if getattr(model, "_compiled_call_impl", None) is None:
                before = model.register_forward_pre_hook(self._before_forward, with_kwargs=True)
                after = model.register_forward_hook(self._after_forward)
                self._undo += [before.remove, after.remove]
            # wrappers of frameworks turn autocast on inside of their own forward pass
            if inner := next((each for each in model.modules() if each._parameters), None):
                self._undo.append(inner.register_forward_pre_hook(self._before_inner_forward).remove)
        self._watch_updates(on_update)
        for scaler in self._scalers:
            self._watch_skips(scaler, on_skipped)

    def remove(self) -> None:
        """Remove everything that ``install`` has put into torch and the script."""
        for undo in reversed(self._undo):
            undo()
        self._undo = []

    def _watch_updates(self, on_update: Callable[[Any], None]) -> None:
        def end(optimizer: Any, *_: Any) -> None:
            self._forget_update()
            self._updates += 1
            self._end("optimizer")
            on_update(optimizer)

        def begin(*_: Any) -> None:
            if torch.compiler.is_compiling():
                return
            # of this update alone, and so the last hook: torch iterates over them, so no other may remove any
            self._forget_update()
            self._after_update = register_optimizer_step_post_hook(end)
            self._begin("optimizer")

        self._undo += [register_optimizer_step_pre_hook(begin).remove, self._forget_update]

    def _forget_update(self) -> None:
        if self._after_update is not None:
            self._after_update.remove()
            self._after_update = None

    def _replace(self, owner: Any, name: str, wrap: Wrapper) -> None:
        original, is_own = getattr(owner, name), name in vars(owner)
        replaced = functools.wraps(original)(wrap(original))
        setattr(owner, name, replaced)

        def restore() -> None:
            # what the script has put in its place since is the script's
            if getattr(owner, name) is not replaced:
                return
            if is_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)

        self._undo.append(restore)

    def _loader_next(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def next_batch(loader: Any) -> Any:
            if threading.get_ident() != self._thread:
                return original(loader)
            self._begin("data")
            try:
                batch = original(loader)
            finally:
                self._end("data")
            self._note(batch, self.loaded)
            return batch

        return next_batch

    def _note(self, batch: Any, sizes: list[BatchSize]) -> None:
        # a batch of sparse or nested tensors, or of the script's own classes, tells nothing
        with suppress(RuntimeError, TypeError, ValueError, AttributeError, LookupError):
            self._note_inputs(batch_tensor(batch), sizes)

    def _note_inputs(self, inputs: torch.Tensor | None, sizes: list[BatchSize]) -> None:
        if inputs is None or isinstance(inputs, DTensor):
            return
        sizes.append(batch_size(inputs))
        # loaders come first: the inputs of a model are their rows, or made of them
        if len(self.rows) < _HASHED_BATCHES and (sizes is self.loaded or not self.loaded):
            self.rows.append(row_hashes(inputs))

    def _before_forward(self, model: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            # no hook becomes a part of a graph
            return
        self._guarded(self._note_forward, model, args, kwargs)
        self._begin("forward")

    def _note_forward(self, model: Any, args: Any, kwargs: Any) -> None:
        if model.training and torch.is_grad_enabled():
            self._note([kwargs, args] if kwargs else args, self.given)
            self.autocast = _autocast_dtype()

    def _after_forward(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._end("forward")

    def _before_inner_forward(self, model: Any, *_: Any) -> None:
        if not torch.compiler.is_compiling() and model.training and torch.is_grad_enabled():
            self.autocast = _autocast_dtype()

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if self._in_backward:
                # of a checkpoint that recomputes
                return original(tensors, *args, **kwargs)
            self._guarded(self._note_loss, tensors)
            self._in_backward = True
            self._begin("backward")
            try:
                return original(tensors, *args, **kwargs)
            finally:
                self._end("backward")
                self._in_backward = False
                self.backward_passes += 1

        return backward

    def _note_loss(self, tensors: Any) -> None:
        """Note what a backward pass begins with, and if it begins a set of gradients."""
        if not self.accumulations or self._updates > self._updates_at_backward:
            self.accumulations += 1
            self.losses = []
        self._updates_at_backward = self._updates
        if isinstance(tensors, torch.Tensor) and tensors.numel() == 1:
            self.losses.append(self._unscaled(tensors.detach()))

    def _unscaled(self, loss: torch.Tensor) -> torch.Tensor:
        local: torch.Tensor = loss.to_local() if isinstance(loss, DTensor) else loss
        scale = next((each._scale for each in self._scalers if each._scale is not None), None)
        return local if scale is None else torch.div(local.float(), scale)

    def _watch_skips(self, scaler: Any, on_skipped: Callable[[], None]) -> None:
        def watch(original: Callable[..., Any]) -> Callable[..., Any]:
            def step(*args: Any, **kwargs: Any) -> Any:
                before = self._updates
                result = original(*args, **kwargs)
                if self._updates == before:
                    on_skipped()
                return result

            return step

        self._replace(scaler, "step", watch)

    def _guarded(self, act: Callable[..., None], *args: Any) -> None:
        """Call *act*; its own errors end the observation, and never the script."""
        try:
            act(*args)
        except Exception as error:
            self._on_fault(error)

    def _begin(self, part: str) -> None:
        self._guarded(self._begin_part, part)

    def _end(self, part: str) -> None:
        self._guarded(self._end_part, part)

    def _begin_part(self, part: str) -> None:
        context = None if self.around is None else self.around(part)
        if context is not None:
            context.__enter__()
        self._open[part] = self._clock.start(part), context

    def _end_part(self, part: str) -> None:
        # a part that began before it was observed
        if part not in self._open:
            return
        stop, context = self._open.pop(part)
        stop()
        if context is not None:
            context.__exit__(None, None, None)


def _autocast_dtype() -> torch.dtype | None:
    """Dtype of autocast here; None: it is off."""
    kind = "cuda" if torch.is_autocast_enabled("cuda") else "cpu"
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
