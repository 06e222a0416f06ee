"""The module of a rank: loaded, made to compute as its case asks for, and read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from distbench.core.case import Case
from distbench.strategies.base import RankContext
from distbench.strategies.torch_engine.compilation import compile_layers
from distbench.strategies.torch_engine.float8 import convert_to_float8
from distbench.strategies.torch_engine.forwards import compute_in
from distbench.strategies.torch_engine.readback import dtype_name
from distbench.strategies.torch_engine.recomputation import checkpoint_layers
from distbench.workloads import batch_norm
from distbench.workloads.weights import DTYPES, load_module

T = TypeVar("T")


def load_plain_module(context: RankContext) -> tuple[nn.Module, list[nn.Module]]:
    """Whole module with its weights on the device, in its master dtype, and its layers."""
    master = DTYPES[context.case.precision.master]
    module = load_module(context.workload, context.weights_file, context.device, master)
    return module, prepare_module(context, module)


def prepare_module(context: RankContext, module: nn.Module) -> list[nn.Module]:
    """Let *module*, which is in its master dtype, compute as the case asks for; return its layers."""
    precision = context.case.precision
    layers = _convert_to_float8(context.case, module, context.workload.layers(module))
    if precision.compute != precision.master:
        # layers before the whole, which casts what is in none of them
        for part in (*layers, module):
            compute_in(part, DTYPES[precision.compute])
    return _checkpoint_and_compile(context.case, layers)


def prepare_layers(case: Case, module: nn.Module, layers: list[nn.Module]) -> list[nn.Module]:
    """*layers* inside *module* as *case* asks for them: in float8, recomputing, and compiled with both.

    For a module whose framework casts it.
    """
    return _checkpoint_and_compile(case, _convert_to_float8(case, module, layers))


def _convert_to_float8(case: Case, module: nn.Module, layers: list[nn.Module]) -> list[nn.Module]:
    """*layers* inside *module*, each once, in float8 if *case* asks for that.

    Raises:
        UnsupportedCase: the module has layers that its device can't compute, or none to convert.
    """
    if case.device == "cpu":
        batch_norm.check_computable(module, case.precision.compute)
    # one that is called several times is one layer
    return convert_to_float8(case, module, list(dict.fromkeys(layers)))


def _checkpoint_and_compile(case: Case, layers: list[nn.Module]) -> list[nn.Module]:
    checkpoint_layers(case, layers)
    compile_layers(case, layers)
    return layers


class ComputeProbe:
    """Learns from the first forward pass in which dtype a layer computes, and on how many rows the module."""

    def __init__(self, module: nn.Module, layers: list[nn.Module]) -> None:
        self.dtype: str | None = None
        self.samples: int | None = None
        self.positions: int | None = None
        """Of each row, where a layer has any."""
        self._hooks = [
            # a layer may have its rows otherwise, as one that takes all positions of all rows as one
            module.register_forward_pre_hook(self._observe_inputs, with_kwargs=True),
            (layers or [module])[0].register_forward_hook(self._observe_layer),
        ]

    def _observe_inputs(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        # of a batch that is an object of the model's own nothing is known
        self.samples = next((each.shape[0] for each in _tensors((args, kwargs)) if each.ndim), None)

    def _observe_layer(self, module: nn.Module, args: Any, output: Any) -> None:
        tensor = next((each for each in _tensors(output) if each.is_floating_point()), None)
        if tensor is not None:
            self.dtype = dtype_name([tensor.dtype])
            self.positions = tensor.shape[1] if tensor.ndim > 2 else None
            self.samples = tensor.shape[0] if self.samples is None and tensor.ndim else self.samples
        for hook in self._hooks:
            hook.remove()


def run_evaluation(module: nn.Module, score: Callable[[nn.Module], T]) -> T:
    """``judge(module)``, with *module* in evaluation mode and no gradients kept."""
    module.eval()
    try:
        with torch.no_grad():
            return score(module)
    finally:
        module.train()


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
