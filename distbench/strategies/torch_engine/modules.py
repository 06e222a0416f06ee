"""The module of a rank: loaded, cast, wrapped layer by layer, and read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from distbench.case import Case
from distbench.strategies.base import Setting
from distbench.strategies.torch_engine.compilation import compile_layers
from distbench.strategies.torch_engine.float8 import float8_layers
from distbench.strategies.torch_engine.layers import wrap_layers
from distbench.strategies.torch_engine.reading import dtype_name
from distbench.strategies.torch_engine.recomputation import checkpointed_layers
from distbench.workloads.weights import DTYPES, loaded

T = TypeVar("T")


def plain_module(setting: Setting) -> tuple[nn.Module, list[nn.Module]]:
    """Whole module with its weights on the device, in its master dtype, and its layers."""
    master = DTYPES[setting.case.precision.master]
    return wrapped(setting, loaded(setting.workload, setting.weights, setting.device, master))


def wrapped(setting: Setting, module: nn.Module) -> tuple[nn.Module, list[nn.Module]]:
    """*module*, which is in its master dtype, computing as the case asks for it, and its layers."""
    precision = setting.case.precision
    layers = setting.workload.layers(module)
    if precision.compute == precision.master:
        return module, prepared_layers(setting.case, module, layers)
    dtype = DTYPES[precision.compute]
    layers = wrap_layers(module, layers, lambda layer: CastCompute(layer, dtype))
    return CastCompute(module, dtype), prepared_layers(setting.case, module, layers)


def prepared_layers(case: Case, module: nn.Module, layers: list[nn.Module]) -> list[nn.Module]:
    """*layers* inside *module* as *case* asks for them: in float8, recomputing, and compiled with both."""
    prepared = checkpointed_layers(case, module, float8_layers(case, module, layers))
    compile_layers(case, prepared)
    return prepared


class CastCompute(nn.Module):
    """Runs a module on copies of its parameters in another dtype; gradients keep the master's.

    What FSDP2's mixed precision does, for strategies that have none of their own: the same
    compute in the same dtype everywhere, which autocast (it keeps some operations in fp32) is not.
    It wraps each layer and the rest, so that recomputing a layer casts again.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self._cast_module = module
        self._dtype = dtype
        inner = [name for name, child in module.named_modules() if isinstance(child, CastCompute)]
        self._names = [
            name
            for name, _ in module.named_parameters()
            if not any(name.startswith(f"{prefix}.") for prefix in inner)
        ]

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """``module(*inputs)`` computed in the dtype; floating inputs are cast too."""
        module = self._cast_module
        parameters = {name: module.get_parameter(name).to(self._dtype) for name in self._names}
        cast = cast_floats(inputs, self._dtype)
        result: torch.Tensor = torch.func.functional_call(module, parameters, cast)
        return result


def cast_floats(inputs: tuple[torch.Tensor, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """*inputs*, those of floating point as *dtype*."""
    return tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)


class ComputeProbe:
    """Learns from the first forward pass in which dtype, and on how many rows, a layer computes."""

    def __init__(self, layers: list[nn.Module]) -> None:
        self.dtype: str | None = None
        self.rows: int | None = None
        self.positions: int | None = None
        """Of each row, where it has any."""
        self._hook = layers[0].register_forward_hook(self._look)

    def _look(self, module: nn.Module, inputs: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        self.dtype = dtype_name([tensor.dtype])
        self.rows = tensor.shape[0]
        self.positions = tensor.shape[1] if tensor.ndim > 2 else None
        self._hook.remove()


def evaluated(module: nn.Module, judge: Callable[[nn.Module], T]) -> T:
    """``judge(module)``, with *module* in evaluation mode and no gradients kept."""
    module.eval()
    try:
        with torch.no_grad():
            return judge(module)
    finally:
        module.train()
