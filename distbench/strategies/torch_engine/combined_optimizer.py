"""Combine several torch optimizers into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class CombinedOptimizer(torch.optim.Optimizer):
    """Optimizers of different parameters as one, for schedulers, checkpoints and DeepSpeed.

    Parameter groups and state are shared with the parts, so a change here is one there.
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = tuple(parts)
        self._counts = [len(part.param_groups) for part in parts]
        # the base class keeps the same group objects that are passed in
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share_state()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step every part."""
        loss = closure() if closure else None
        for part in self.optimizers:
            part.step()
        return loss

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share_state()

    def _share_state(self) -> None:
        """Share the current groups and state with the parts."""
        groups = iter(self.param_groups)
        for part, count in zip(self.optimizers, self._counts, strict=True):
            part.param_groups = [next(groups) for _ in range(count)]
            part.state = self.state
