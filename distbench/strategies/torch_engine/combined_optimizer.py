"""Two of torch's optimizers as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class CombinedOptimizer(torch.optim.Optimizer):
    """Optimizers that each update parameters of their own, as one: to schedulers, checkpoints and DeepSpeed.

    Parameter groups and state are those of the parts; what anybody changes here, the parts have.
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = tuple(parts)
        self._counts = [len(part.param_groups) for part in parts]
        # it keeps the very groups that it is given
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
        """Let the parts have the groups and the state that are here now."""
        groups = iter(self.param_groups)
        for part, count in zip(self.optimizers, self._counts, strict=True):
            part.param_groups = [next(groups) for _ in range(count)]
            part.state = self.state
