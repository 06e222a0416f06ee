"""Call something after each layer of a training, forward and backward, as sharded strategies do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree


class LayerCallHooks:
    """Hooks of layers: one after the forward pass of each, and one before its backward pass.

    That one comes when the gradient of its output is there, so after the backward pass of the next layer.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        """Install the hooks in *layers*, which until ``remove`` call ``call``."""
        self.call: Callable[[], object] = _nothing
        self.count = 0
        """Calls since the caller set it to 0."""
        self._handles = [layer.register_forward_hook(self._after_forward) for layer in dict.fromkeys(layers)]

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _after_forward(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        self._run()
        tensors = (each for each in pytree.tree_leaves(output) if isinstance(each, torch.Tensor))
        if (tensor := next((each for each in tensors if each.requires_grad), None)) is not None:
            tensor.register_hook(self._before_backward)

    def _before_backward(self, _gradient: torch.Tensor) -> None:
        self._run()

    def _run(self) -> None:
        self.count += 1
        self.call()


def _nothing() -> None:
    """Do nothing."""
