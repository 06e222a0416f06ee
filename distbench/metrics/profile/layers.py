"""Layers of a model: which one runs an operation, and the FLOPs and bytes of its operations.

Modules whose names differ only in numbers, such as ``blocks.0.up`` and ``blocks.1.up``, are one layer.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, shape_wrapper

from distbench.metrics.base import SharedResult
from distbench.metrics.profile.flop_formulas import FORMULAS, may_multiply
from distbench.workloads.weights import plain_name

_ROOT = "model"
_COMMUNICATION = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "profiler")
_WITHOUT_PRODUCTS = ("fsdp",)
"""Namespaces of operators that only copy."""
_NOTHING_RUNS = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided")
"""Operations that only allocate."""


@dataclass
class LayerCost:
    """FLOPs and bytes of the operations of a layer in one pass of a step."""

    flops: int | None = 0
    """None: the FLOPs of an operation are unknown."""
    bytes: int = 0
    """Bytes of the tensors that its operations read and write, each operation for itself."""


@dataclass
class Layer:
    """Modules of one class whose names differ only in numbers."""

    name: str
    kind: str
    """Class of the modules."""
    modules: set[int] = field(default_factory=set)
    """``id`` of those that ran."""
    forward: LayerCost = field(default_factory=LayerCost)
    backward: LayerCost = field(default_factory=LayerCost)
    """With what activation checkpointing recomputes."""


@dataclass
class CountedLayers(SharedResult):
    """Layers that ran in the counted step, by name and class."""

    layers: dict[tuple[str, str], Layer]


class LayerHooks:
    """Hooks on every module that follow which layer runs.

    A backward pass runs nodes of the autograd graph, which have numbers in the order in which the forward
    pass made them: a node belongs to the layer that ran when it was made.
    """

    def __init__(self, mark: Callable[[int], AbstractContextManager[Any]] | None = None) -> None:
        self._mark = mark
        self._index: dict[int, int] = {}
        self._running: list[tuple[nn.Module, int, AbstractContextManager[Any] | None]] = []
        self._thread = 0
        # number of the next node of autograd -> the layer that runs from then on
        self._first_nodes: list[int] = []
        self._layers_from: list[int | None] = []
        self.layers: list[Layer] = []
        """Layers that ran."""

    @contextmanager
    def one_step(self) -> Iterator[None]:
        """Follow the modules inside the context."""
        self._thread = threading.get_ident()
        handles = (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        )
        try:
            yield
        finally:
            self._note_node(None)
            for handle in handles:
                handle.remove()
            self._running.clear()

    def layer_of_node(self, number: int) -> int | None:
        """Index of the layer that made the node *number* of autograd; None: no layer did."""
        place = bisect_right(self._first_nodes, number) - 1
        # nodes that accumulate gradients have no number
        if place < 0 or not 0 <= number < self._first_nodes[-1]:
            return None
        return self._layers_from[place]

    def current(self) -> int | None:
        """Index of the layer whose operation runs now; None: it belongs to none."""
        if self._running:
            return self._running[-1][1]
        node = torch._C._current_autograd_node()
        return self.layer_of_node(node._sequence_nr()) if node else None

    def _enter(self, module: nn.Module, _: Any) -> None:
        if id(module) not in self._index:
            self._learn(module)
        layer = self._index[id(module)]
        self.layers[layer].modules.add(id(module))
        mark = self._mark(layer) if self._mark else None
        if mark:
            mark.__enter__()
        self._running.append((module, layer, mark))
        self._note_node(layer)

    def _leave(self, module: nn.Module, *_: Any) -> None:
        if not any(module is each for each, _, _ in self._running):
            return
        # modules that raised, as when recomputing stops early, are left as well
        while self._running:
            left, _layer, mark = self._running.pop()
            if mark:
                mark.__exit__(None, None, None)
            if left is module:
                break
        self._note_node(self._running[-1][1] if self._running else None)

    def _note_node(self, layer: int | None) -> None:
        # each thread numbers its own nodes; those made while recomputing are never run
        if threading.get_ident() == self._thread and not torch._C._current_autograd_node():
            self._first_nodes.append(torch.autograd._get_sequence_nr())
            self._layers_from.append(layer)

    def _learn(self, root: nn.Module) -> None:
        """Assign all modules below *root* to layers."""
        known = {(each.name, each.kind): place for place, each in enumerate(self.layers)}
        for name, module in root.named_modules():
            plain = plain_name(name)
            parts = ["*" if part.isdigit() else part for part in plain.split(".")]
            # of a wrapper, or of what it wraps
            key = (_ROOT if plain in ("", "module") else ".".join(parts), _class_name(module))
            if key not in known:
                known[key] = len(self.layers)
                self.layers.append(Layer(*key))
            self._index.setdefault(id(module), known[key])


class LayerCosts(TorchDispatchMode):
    """Count FLOPs and bytes of each layer's operations in the forward and the backward pass of one step."""

    def __init__(self) -> None:
        super().__init__()
        self._hooks = LayerHooks()
        self._outside = Layer("", "")
        self._is_paused = False

    def one_step(self) -> AbstractContextManager[None]:
        """Follow the modules inside the context."""
        return self._hooks.one_step()

    @contextmanager
    def observe(self, span: str) -> Iterator[None]:
        """Count the operations of *span*, unless it is no part of a pass."""
        if span in ("forward", "backward"):
            with self:
                yield
            return
        # an optimizer may update inside the backward pass
        was, self._is_paused = self._is_paused, span == "optimizer"
        yield
        self._is_paused = was

    def counted(self) -> CountedLayers:
        """Counted layers; operations of no layer have the name ``""``."""
        every = (*self._hooks.layers, self._outside)
        return CountedLayers({(layer.name, layer.kind): layer for layer in every})

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: run compiled code unchanged; its operations are not seen."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, torch.distributed.tensor.DTensor) for kind in types):
            # the operations on its local tensors are dispatched here
            return NotImplemented
        given = kwargs or {}
        result = func(*args, **given)
        moves = func.namespace not in _COMMUNICATION and func._schema.name not in _NOTHING_RUNS
        if moves and not func.is_view and not self._is_paused:
            index = self._hooks.current()
            layer = self._outside if index is None else self._hooks.layers[index]
            cost = layer.backward if torch._C._current_autograd_node() else layer.forward
            flops = _flops(func, args, given, result)
            cost.flops = None if flops is None or cost.flops is None else cost.flops + flops
            cost.bytes += sum(tensor.nbytes for tensor in _tensors((args, given, result)))
        return result


def _class_name(module: nn.Module) -> str:
    """Name of the module's class, as its author wrote it."""
    names = [base.__name__ for base in type(module).__mro__]
    # fully_shard makes a class of FSDPModule and the author's
    return names[2] if names[1] == "FSDPModule" else names[0]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if type(value) in (torch.Tensor, nn.Parameter):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors([*value.values()])


def _flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int | None:
    """FLOPs of an operation; None: unknown."""
    packet = func._overloadpacket
    formula = _FORMULAS.get(packet) or flop_registry.get(packet)
    if formula is None:
        return None if func.namespace not in _WITHOUT_PRODUCTS and may_multiply(func) else 0
    try:
        return int(formula(*args, **kwargs, out_val=result))
    except AssertionError:
        # a formula of torch's counter that does not know these shapes
        return None


def _attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Two products: scores, and their sums of values."""
    return int(2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1]))


def _attention_backward_flops(_: Any, query: Any, key: Any, value: Any, *__: Any, **___: Any) -> int:
    """Five products: the scores again, and the gradients of both factors of both products."""
    return int(2 * prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1]))


_ATEN = torch.ops.aten
_FORMULAS: dict[Any, Any] = {
    packet: shape_wrapper(formula)
    for packet, formula in {
        **FORMULAS,
        _ATEN._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
        _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
    }.items()
}
"""Torch's counter has none for these."""
