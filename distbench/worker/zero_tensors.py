"""Noise in parameters that are 0 everywhere, or nearly so, for the time of a forward pass."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

_MOST_OF_ZEROS = 1e-3
"""Largest magnitude in a parameter that counts as 0: rounding loses what a scale of 1e-6 lets through."""
_LEAST, _MOST = 0.1, 0.3
"""Bounds of the noise, for a vector; for a matrix divided by the root of what a sum of its outputs adds."""


@contextmanager
def noise_in_zero_tensors(module: nn.Module, *, is_compiled: bool) -> Iterator[None]:
    """Let forward passes of *module* compute with noise in place of trained parameters that are 0 everywhere.

    Such a parameter, as that of a zero-initialised projection, hides what comes before it until it is
    updated. It has noise while the module that owns it runs, where engines have gathered it, and is as it was
    afterwards, bit by bit. Ranks with the same parameter have the same noise. Compiled code runs uncompiled.
    """
    # code that is compiled now would keep the noise
    stance = torch.compiler.set_stance("force_eager") if is_compiled else nullcontext()
    with stance, ExitStack() as hooks:
        for name, part in module.named_modules():
            own = part.named_parameters(recurse=False)
            trained = [key for key, parameter in own if parameter.requires_grad]
            if trained:
                noise = _Noise(name, trained)
                # inside of the hooks by which engines gather and release parameters
                hooks.enter_context(part.register_forward_pre_hook(noise.add))
                hooks.enter_context(part.register_forward_hook(noise.remove, prepend=True, always_call=True))
        yield


class _Noise:
    """Noise in some parameters of a module."""

    def __init__(self, module: str, names: list[str]) -> None:
        self._module, self._names = module, names
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Tensors with noise, and their own values."""

    def add(self, module: nn.Module, _inputs: Any) -> None:
        """Put noise in place of those that are 0 everywhere."""
        for name in self._names:
            parameter = getattr(module, name)
            tensor = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            # FSDP may gather weights in float8
            if not tensor.is_floating_point() or tensor.element_size() < 2 or not tensor.numel():
                continue
            if float(tensor.abs().max()) > _MOST_OF_ZEROS:
                continue
            self._kept.append((tensor, tensor.clone()))
            generator = torch.Generator(tensor.device).manual_seed(
                zlib.crc32(f"{self._module}.{name}".encode())
            )
            scale = math.sqrt(tensor[0].numel()) if tensor.ndim > 1 else 1.0
            tensor.uniform_(_LEAST / scale, _MOST / scale, generator=generator)

    def remove(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        """Remove it."""
        while self._kept:
            tensor, values = self._kept.pop()
            tensor.copy_(values)
