"""Record the order in which a forward pass calls the modules of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from distbench.workloads.module_calls import FlatModuleCall


class CallRecorder:
    """Hooks in all modules of a model, which record the calls inside the first of the whole."""

    def __init__(self, module: nn.Module) -> None:
        self.calls: list[FlatModuleCall] = []
        """Calls in the order of their begins."""
        self._open: list[nn.Module] = []
        self._root = module
        # parameters of several modules have the first name
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}
        self._handles = [
            handle
            for each in module.modules()
            for handle in (
                each.register_forward_pre_hook(self._before, with_kwargs=True),
                each.register_forward_hook(self._after),
            )
        ]

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _before(self, module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        # recomputation calls layers again, after the whole
        if not self._open and (self.calls or module is not self._root):
            return
        given = pytree.tree_leaves((inputs, dict(named)))
        has_gradient = any(isinstance(each, torch.Tensor) and each.requires_grad for each in given)
        own = [*module.parameters(recurse=False)]
        call = FlatModuleCall(
            depth=len(self._open),
            parameters=tuple((self._names[id(each)], each.numel()) for each in own),
            multiplies=not isinstance(module, nn.Embedding) and any(each.ndim > 1 for each in own),
            takes_data=not has_gradient,
        )
        self.calls.append(call)
        self._open.append(module)

    def _after(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._open and self._open[-1] is module:
            self._open.pop()
