"""Make pipeline stages of a module whose plan names the modules before and after its layers.

Every stage runs the module's own forward pass, with stand-ins for the modules of other stages. So a stage
itself makes the other arguments of its layers (positions, masks).
"""

from __future__ import annotations

import copy
import itertools
import types
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from distbench.data.base import DataShape

_PASSAGE = "_distbench_passage"
"""Attribute of a stage with its ``_Passage``."""
_ROWS = 2
"""Rows of the input when a module is tried."""


@dataclass(frozen=True)
class PipelineCut:
    """Names of the modules that have all parameters of a model, in the order in which they run."""

    before: tuple[str, ...]
    layers: tuple[str, ...]
    after: tuple[str, ...]


@dataclass
class _Passage:
    """Input and output of a stage while it runs."""

    rows: tuple[int, ...]
    """Shape of one row of the module's input."""
    dtype: torch.dtype
    """Dtype of the module's input."""
    is_first: bool
    taken: torch.Tensor | None = None
    given: torch.Tensor | None = None


class AbsentModule(nn.Module):
    """Stand-in for a module of another stage: has its attributes, and returns its first argument."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        own = self.__dict__
        own.update({name: value for name, value in vars(module).items() if name not in own})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The first argument, as it is."""
        return next(iter((*args, *kwargs.values())))


class _Entrance(AbsentModule):
    """Stand-in for the module before the layers of a stage: returns the input of the stage."""

    def __init__(self, module: nn.Module, passage: _Passage) -> None:
        super().__init__(module)
        self.passage = passage

    def forward(self, *_: Any, **__: Any) -> Any:
        """Input of the stage."""
        return self.passage.taken


class _Exit(AbsentModule):
    """Stand-in for the layer after those of a stage: its input is the output of the stage."""

    def __init__(self, module: nn.Module, passage: _Passage) -> None:
        super().__init__(module)
        self.passage = passage

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The first argument, as it is."""
        self.passage.given = super().forward(*args, **kwargs)
        return self.passage.given


class _Probe(AbsentModule):
    """Stand-in for a layer that returns a new tensor, to show where that goes."""

    taken: Any = None
    given: Any = None
    others: Any = ()
    calls = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """A tensor like the first argument."""
        self.calls += 1
        self.taken, *self.others = (*args, *kwargs.values())
        self.given = torch.empty_like(self.taken)
        return self.given


def make_stage(module: nn.Module, cut: PipelineCut, layers: range, shape: DataShape) -> nn.Module:
    """Stage of *module* with *layers*, of its class and with its names of parameters.

    The first stage takes the input of rows of *shape*, and the last returns the output of the module; between
    stages passes the first argument of a layer.
    """
    passage = _Passage(shape.input_shape, _dtype(shape), is_first=layers.start == 0)
    stands: dict[str, nn.Module] = {}
    for name in cut.before:
        part = module.get_submodule(name)
        stands[name] = part if passage.is_first else _Entrance(part, passage)
    for number, name in enumerate(cut.layers):
        part = module.get_submodule(name)
        stands[name] = part if number in layers else _stand_in(part, number, layers, passage)
    for name in cut.after:
        part = module.get_submodule(name)
        is_absent = layers.stop < len(cut.layers)
        # a copy, as it may be tied to a module of another stage
        stands[name] = AbsentModule(part) if is_absent else part if passage.is_first else copy.deepcopy(part)
    stage: Any = _replace_modules(module, stands)
    setattr(stage, _PASSAGE, passage)
    stage.forward = types.MethodType(_forward, stage)
    return stage  # type: ignore[no-any-return]


def activation_shape(module: nn.Module, cut: PipelineCut, shape: DataShape) -> tuple[int, ...]:
    """Shape of the tensor that passes from a layer of *module* to the next, for one row.

    Raises:
        ValueError: its forward pass can't be run in stages, with the reason.
    """
    # fake tensors, so that a model without weights needs no values
    fake = FakeTensorMode(allow_non_fake_inputs=True) if _device(module).type == "meta" else nullcontext()
    probes, other = (_probe_layers(module, cut, _rows(module, shape, value), fake) for value in (0, 1))
    taken = _layer_input(probes, other)
    if len(cut.layers) > 1 and _run(make_stage(module, cut, range(1, 1), shape), taken, fake) is not taken:
        raise ValueError("its forward pass can't start at its second layer")
    return tuple(taken.shape[1:])


def _stand_in(layer: nn.Module, number: int, layers: range, passage: _Passage) -> nn.Module:
    if number == layers.start - 1:
        return _Entrance(layer, passage)
    return _Exit(layer, passage) if number == layers.stop else AbsentModule(layer)


def _forward(self: Any, taken: torch.Tensor) -> Any:
    """Forward pass of a stage: that of the module, on rows of zeros unless it is the first."""
    passage: _Passage = getattr(self, _PASSAGE)
    rows = taken
    if not passage.is_first:
        passage.taken = taken
        rows = torch.zeros(len(taken), *passage.rows, dtype=passage.dtype, device=taken.device)
    output = type(self).forward(self, rows)
    given = passage.given
    # autograd's graph keeps the tensors of a micro-batch that are needed later
    passage.taken = passage.given = None
    return output if given is None else given


def _replace_modules(module: nn.Module, parts: Mapping[str, nn.Module]) -> nn.Module:
    """Copy of *module* with *parts* in place of the modules of those names, and copies of all others."""
    if "" in parts:
        return parts[""]
    if not parts:
        # filling one stage must not empty the modules of another
        return copy.deepcopy(module)
    shell = copy.copy(module)
    for own in ("_modules", "_parameters", "_buffers"):
        shell.__dict__[own] = dict(vars(module)[own])
    for name, child in module.named_children():
        shell._modules[name] = _replace_modules(child, dict(_parts_below(name, parts)))
    return shell


def _parts_below(name: str, parts: Mapping[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    for path, part in parts.items():
        first, _, rest = path.partition(".")
        if first == name:
            yield rest, part


def _probe_layers(
    module: nn.Module, cut: PipelineCut, rows: torch.Tensor, mode: AbstractContextManager[Any]
) -> list[_Probe]:
    """Run *module* over *rows* with probes as layers, without the modules after them; return the probes.

    Raises:
        ValueError: it can't be run so, or runs modules in another order than that of *cut*.
    """
    probes = {name: _Probe(module.get_submodule(name)) for name in cut.layers}
    before = {name: module.get_submodule(name) for name in cut.before}
    after = {name: AbsentModule(module.get_submodule(name)) for name in cut.after}
    parts = {**before, **probes, **after}
    ran: list[str] = []
    hooks = [
        part.register_forward_pre_hook(lambda _module, _inputs, name=name: ran.append(name))
        for name, part in parts.items()
    ]
    try:
        _run(_replace_modules(module, parts), rows, mode)
    finally:
        for hook in hooks:
            hook.remove()
    kinds = {**dict.fromkeys(before, 0), **dict.fromkeys(probes, 1), **dict.fromkeys(after, 2)}
    for name, later in itertools.pairwise(ran):
        if kinds[name] > kinds[later]:
            raise ValueError(f"its plan has {later} before {name}, but the model runs it later")
    return [*probes.values()]


def _run(module: nn.Module, taken: torch.Tensor, mode: AbstractContextManager[Any]) -> Any:
    """Output of *module* for *taken* in a *mode*, without an autograd graph.

    Raises:
        ValueError: it can't be run.
    """
    try:
        with torch.no_grad(), mode:
            return module(taken)
    except Exception as error:
        # the model's own code, run without its layers
        raise ValueError(
            f"its forward pass can't be run without its layers ({type(error).__name__}: {error})"
        ) from error


def _layer_input(probes: list[_Probe], other: list[_Probe]) -> torch.Tensor:
    """Input of the first layer, by the *probes* of one input and those of an *other* one.

    Raises:
        ValueError: layers do not pass on one tensor alone.
    """
    if any(probe.calls != 1 for probe in probes):
        raise ValueError("its forward pass does not run each of its layers once")
    chain = itertools.pairwise(probes)
    if any(after.taken is not before.given for before, after in chain):
        raise ValueError("between its layers it does more than pass on the first argument")
    if not all(_are_alike(one.others, two.others) for one, two in zip(probes, other, strict=True)):
        raise ValueError(
            "its layers take another argument that depends on the rows, and only one stage has it"
        )
    taken: torch.Tensor = probes[0].taken
    if len(taken) != _ROWS:
        raise ValueError(
            f"the first dimension of the input of its layers is not the rows: {tuple(taken.shape)}"
        )
    return taken


def _are_alike(one: Any, other: Any) -> bool:
    """True if the arguments of two passes are equal, as far as they have values."""
    pairs = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
    tensors = [(a, b) for a, b in pairs if isinstance(a, torch.Tensor) and not isinstance(a, FakeTensor)]
    return all(torch.equal(a, b) for a, b in tensors)


def _rows(module: nn.Module, shape: DataShape, value: int) -> torch.Tensor:
    """Some rows of *value*, on the device of *module*."""
    return torch.full((_ROWS, *shape.input_shape), value, dtype=_dtype(shape), device=_device(module))


def _device(module: nn.Module) -> torch.device:
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))


def _dtype(shape: DataShape) -> torch.dtype:
    return torch.int64 if shape.takes_ids else torch.float32
