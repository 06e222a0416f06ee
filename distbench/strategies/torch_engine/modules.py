"""The module of a rank: loaded, made to compute as its case asks for, and read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from distbench.core.case import Case
from distbench.strategies.base import Setting
from distbench.strategies.torch_engine.compilation import compile_layers
from distbench.strategies.torch_engine.float8 import float8_layers
from distbench.strategies.torch_engine.forwards import compute_in
from distbench.strategies.torch_engine.reading import dtype_name
from distbench.strategies.torch_engine.recomputation import checkpoint_layers
from distbench.workloads import batch_norm
from distbench.workloads.weights import DTYPES, loaded

T = TypeVar("T")


def plain_module(setting: Setting) -> tuple[nn.Module, list[nn.Module]]:
    """Whole module with its weights on the device, in its master dtype, and its layers."""
    master = DTYPES[setting.case.precision.master]
    module = loaded(setting.workload, setting.weights, setting.device, master)
    return module, computing_layers(setting, module)


def computing_layers(setting: Setting, module: nn.Module) -> list[nn.Module]:
    """Let *module*, which is in its master dtype, compute as the case asks for; return its layers."""
    precision = setting.case.precision
    layers = _converted(setting.case, module, setting.workload.layers(module))
    if precision.compute != precision.master:
        # layers before the whole, which casts what is in none of them
        for part in (*layers, module):
            compute_in(part, DTYPES[precision.compute])
    return _recomputing(setting.case, layers)


def prepared_layers(case: Case, module: nn.Module, layers: list[nn.Module]) -> list[nn.Module]:
    """*layers* inside *module* as *case* asks for them: in float8, recomputing, and compiled with both.

    For a module whose framework casts it.
    """
    return _recomputing(case, _converted(case, module, layers))


def _converted(case: Case, module: nn.Module, layers: list[nn.Module]) -> list[nn.Module]:
    """*layers* inside *module*, each once, in float8 if *case* asks for that.

    Raises:
        Refused: the module has layers that its device can't compute, or none to convert.
    """
    if case.device == "cpu":
        batch_norm.check_computable(module, case.precision.compute)
    # one that is called several times is one layer
    return float8_layers(case, module, list(dict.fromkeys(layers)))


def _recomputing(case: Case, layers: list[nn.Module]) -> list[nn.Module]:
    checkpoint_layers(case, layers)
    compile_layers(case, layers)
    return layers


class ComputeProbe:
    """Learns from the first forward pass in which dtype a layer computes, and on how many rows the module."""

    def __init__(self, module: nn.Module, layers: list[nn.Module]) -> None:
        self.dtype: str | None = None
        self.rows: int | None = None
        self.positions: int | None = None
        """Of each row, where a layer has any."""
        self._hooks = [
            # a layer may have its rows otherwise, as one that takes all positions of all rows as one
            module.register_forward_pre_hook(self._look_at_rows, with_kwargs=True),
            (layers or [module])[0].register_forward_hook(self._look_at_layer),
        ]

    def _look_at_rows(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        # of a batch that is an object of the model's own nothing is known
        self.rows = next((each.shape[0] for each in _tensors((args, kwargs)) if each.ndim), None)

    def _look_at_layer(self, module: nn.Module, args: Any, output: Any) -> None:
        tensor = next((each for each in _tensors(output) if each.is_floating_point()), None)
        if tensor is not None:
            self.dtype = dtype_name([tensor.dtype])
            self.positions = tensor.shape[1] if tensor.ndim > 2 else None
            self.rows = tensor.shape[0] if self.rows is None and tensor.ndim else self.rows
        for hook in self._hooks:
            hook.remove()


def evaluated(module: nn.Module, judge: Callable[[nn.Module], T]) -> T:
    """``judge(module)``, with *module* in evaluation mode and no gradients kept."""
    module.eval()
    try:
        with torch.no_grad():
            return judge(module)
    finally:
        module.train()


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
