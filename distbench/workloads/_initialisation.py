"""Record how a module initialises itself, without drawing numbers.

Operations of a constructor on a tensor are recorded as a list and not executed: memory that nobody touches
costs nothing, so a model of any size can be inspected. Applied to the quantiles of a distribution instead,
the operations give the quantiles of the tensor that the constructor would have drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from distbench.workloads._draws import QUANTILE_COUNT

aten = torch.ops.aten

# operations that fill a tensor whatever was in it before
_DRAWS = {aten.normal_, aten.uniform_}
_FILLS = {*_DRAWS, aten.zero_, aten.fill_}
_DRAWING_FUNCTIONS: set[Any] = {
    torch.Tensor.normal_,
    torch.Tensor.uniform_,
    nn.init.normal_,
    nn.init.uniform_,
}
# operations that treat every element alike
_ELEMENTWISE = {
    *(aten.add_, aten.sub_, aten.mul_, aten.div_, aten.clamp_, aten.clamp_min_, aten.clamp_max_),
    *(aten.erfinv_, aten.exp_, aten.log_, aten.neg_, aten.sqrt_, aten.tanh_, aten.abs_),
}


@dataclass(frozen=True)
class _Operation:
    """An in-place operation, without the tensor that it changes."""

    function: Any
    arguments: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def apply_to(self, tensor: torch.Tensor) -> None:
        self.function(tensor, *self.arguments, **self.kwargs)


class NoDraws(TorchFunctionMode):
    """Leaves a tensor as it is where a constructor would draw its numbers."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWING_FUNCTIONS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


class InitRecorder(TorchDispatchMode):
    """Recorder of a constructor's elementwise operations on whole tensors, which are not executed.

    All other operations are executed, after the recorded ones that they depend on.
    """

    def __init__(self) -> None:
        super().__init__()
        self._histories: dict[int, tuple[torch.Tensor, list[_Operation]]] = {}
        """Storage -> a tensor that keeps it alive, so that no other gets its id, and its operations."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _is_view(func):
            return func(*args, **kwargs)
        if self._record(func, args, kwargs):
            return args[0]
        for tensor in _tensors((args, kwargs)):
            self.materialise(tensor)
        return func(*args, **kwargs)

    def quantiles(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Quantiles (65536,), in fp64, of the distribution of *tensor*; None if it has real values."""
        _, history = self._histories.get(_storage_id(tensor), (None, []))
        if not history or not tensor.is_floating_point() or not _covers_storage(tensor):
            return None
        levels = _quantiles(history[0])
        for operation in history[1:]:
            operation.apply_to(levels)
        # as the tensor would have held them
        return levels.to(tensor.dtype).double()

    def materialise(self, tensor: torch.Tensor) -> None:
        """Execute the operations recorded for the storage of *tensor*."""
        whole, history = self._histories.pop(_storage_id(tensor), (tensor, []))
        for operation in history:
            operation.apply_to(whole)

    def _record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        packet = getattr(func, "overloadpacket", None)
        if (packet not in _FILLS and packet not in _ELEMENTWISE) or not _covers_storage(args[0]):
            return False
        target, *others = args
        if next(_tensors((others, kwargs)), None) is not None:
            return False
        place = _storage_id(target)
        if packet in _FILLS:
            self._histories[place] = (target.detach(), [])
        elif place not in self._histories:
            return False
        self._histories[place][1].append(_Operation(func, tuple(others), kwargs))
        return True


def _quantiles(fill: _Operation) -> torch.Tensor:
    """Quantiles (65536,), in fp64, of the distribution of *fill*: the middles of equal shares."""
    packet = fill.function.overloadpacket
    if packet not in _DRAWS:
        levels = torch.empty(QUANTILE_COUNT, dtype=torch.float64)
        fill.apply_to(levels)
        return levels
    middles = (torch.arange(QUANTILE_COUNT, dtype=torch.float64) + 0.5) / QUANTILE_COUNT
    first, second = _parameters(fill)
    if packet is aten.uniform_:
        uniform: torch.Tensor = first + (second - first) * middles
        return uniform
    normal = torch.special.ndtri(middles)
    # the middle of an outermost share is closer to the centre than its mean
    scaled: torch.Tensor = first + second * normal / normal.std(correction=0)
    return scaled


def _parameters(draw: _Operation) -> tuple[float, float]:
    """Mean and standard deviation of a normal draw, or the ends of a uniform one."""
    declared = draw.function._schema.arguments[1:3]
    given = dict(zip((each.name for each in declared), draw.arguments, strict=False)) | dict(draw.kwargs)
    first, second = (given.get(each.name, each.default_value) for each in declared)
    return first, second


def _is_view(func: Any) -> bool:
    """True if *func* only returns another view of a tensor."""
    schema = func._schema
    aliases = [value.alias_info for value in schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def _tensors(tree: Any) -> Any:
    return (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _storage_id(tensor: torch.Tensor) -> int:
    place: int = tensor.untyped_storage()._cdata
    return place


def _covers_storage(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
