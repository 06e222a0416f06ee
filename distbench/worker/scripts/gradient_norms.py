"""Gradient norms that a script computes anyway, and the limits to which it clips them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FullyShardedV1
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


class Replace(Protocol):
    """Puts a wrapper in the place of a function until the observation ends."""

    def __call__(self, owner: Any, name: str, wrap: Wrapper) -> None:
        """Replace the function *name* of *owner* by what *wrap* makes of it."""


class GradientNorms:
    """L2 norms of the gradients of the current step, from torch's clipping and that of FSDP1."""

    def __init__(self) -> None:
        self.found: list[torch.Tensor] = []
        """Norms that the current step has computed; of a part, if ``is_part``."""
        self.is_part = False
        """True if each rank knows only the norm of its own shards, so that all of them make up the norm."""
        self.limit: float | None = None
        """Norm to which the script clips; None: it does not."""

    def install(self, replace: Replace) -> None:
        """Watch from now on."""
        # what clip_grad_norm_ calls, so that names imported from it before are watched, too
        replace(clip_grad, "_get_total_norm", self._total_norm)
        replace(clip_grad, "_clip_grads_with_norm_", self._clip)
        replace(FullyShardedV1, "clip_grad_norm_", self._clip_shards)

    def _total_norm(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
            norm = original(tensors, norm_type, *args, **kwargs)
            if not torch.compiler.is_compiling() and float(norm_type) == 2:
                self._note(norm)
            return norm

        return total_norm

    def _clip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def clip(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                self.limit = float(max_norm)
            return original(parameters, max_norm, *args, **kwargs)

        return clip

    def _clip_shards(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def clip(model: Any, max_norm: float, norm_type: float = 2.0) -> Any:
            norm = original(model, max_norm, norm_type)
            if float(norm_type) == 2:
                self.limit = float(max_norm)
                self._note(norm)
            return norm

        return clip

    def _note(self, norm: torch.Tensor) -> None:
        if not isinstance(norm, DTensor):
            self.found.append(norm.detach())
            return
        # reading the whole of it would communicate, which the script does not
        is_whole = all(each.is_replicate() for each in norm.placements)
        is_part = all(each.is_partial() for each in norm.placements)
        if is_whole or (is_part and norm.device_mesh.size() == dist.get_world_size()):
            self.is_part = is_part
            self.found.append(norm.to_local().detach())
