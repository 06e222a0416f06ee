"""Module of a rank: load it, prepare it for its case, and read it back."""

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
    """Full module with its weights on the device, in its master dtype, and its layers."""
    master = DTYPES[context.case.precision.master]
    module = load_module(context.workload, context.weights_file, context.device, master)
    return module, prepare_module(context, module)


def prepare_module(context: RankContext, module: nn.Module) -> list[nn.Module]:
    """Prepare *module*, which is in its master dtype, to compute as its case requests; return its layers."""
    precision = context.case.precision
    layers = _convert_to_float8(context.case, module, context.workload.layers(module))
    if precision.compute != precision.master:
        # layers before the full module, which casts everything outside of them
        for part in (*layers, module):
            compute_in(part, DTYPES[precision.compute])
    return _checkpoint_and_compile(context.case, layers)


def prepare_layers(case: Case, module: nn.Module, layers: list[nn.Module]) -> list[nn.Module]:
    """*layers* inside *module* as *case* requests them: float8, recomputation, and compilation of both.

    For a module that its framework casts.
    """
    return _checkpoint_and_compile(case, _convert_to_float8(case, module, layers))


def _convert_to_float8(case: Case, module: nn.Module, layers: list[nn.Module]) -> list[nn.Module]:
    """*layers* inside *module*, each once, in float8 if *case* requests it.

    Raises:
        UnsupportedCase: the module has layers that its device can't compute, or none to convert.
    """
    if case.device == "cpu":
        batch_norm.check_computable(module, case.precision.compute)
    # a layer that is called several times is one layer
    return convert_to_float8(case, module, list(dict.fromkeys(layers)))


def _checkpoint_and_compile(case: Case, layers: list[nn.Module]) -> list[nn.Module]:
    checkpoint_layers(case, layers)
    compile_layers(case, layers)
    return layers


class ComputeProbe:
    """Probe dtype and batch size in the first forward pass."""

    def __init__(self, module: nn.Module, layers: list[nn.Module]) -> None:
        self.dtype: str | None = None
        self.samples: int | None = None
        self.positions: int | None = None
        """Number of positions of each sample, if a layer's output has any."""
        self._hooks = [
            # a layer may arrange samples differently, such as all positions of all samples in one dimension
            module.register_forward_pre_hook(self._observe_inputs, with_kwargs=True),
            (layers or [module])[0].register_forward_hook(self._observe_layer),
        ]

    def _observe_inputs(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        # a batch that is an object of the model's own can't be inspected
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
    """``score(module)``, with *module* in evaluation mode and without gradients."""
    module.eval()
    try:
        with torch.no_grad():
            return score(module)
    finally:
        module.train()


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
