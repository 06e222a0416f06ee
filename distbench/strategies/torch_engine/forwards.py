"""Change forward passes in place: a module keeps its class, attributes, signature and names.

A wrapper of another class would break a model that checks a layer's class or attributes, or passes arguments
by keyword.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

Forward = Callable[..., Any]
Change = Callable[[Forward, nn.Module], Forward]
"""Function that turns the forward pass of a module into another one with the same arguments."""

T = TypeVar("T")

_CASTS = "_distbench_casts"
"""Attribute of a forward pass that casts the parameters of its module."""


def change_forward(module: nn.Module, change: Change) -> None:
    """Replace the forward pass of *module* by the result of *change*; its attributes are kept."""
    is_first = "forward" not in vars(module)
    replicate: Callable[[], nn.Module] = module._replicate_for_data_parallel

    def replicated() -> nn.Module:
        # nn.DataParallel copies attributes, and this forward pass belongs to the original module
        replica = replicate()
        if is_first:
            del vars(replica)["forward"]
        replica.forward = _changed(replica, change)
        return replica

    module.forward = _changed(module, change)
    module._replicate_for_data_parallel = replicated  # type: ignore[method-assign]


def cast_floats(value: T, dtype: torch.dtype) -> T:
    """*value*, arbitrarily nested, with floating-point tensors cast to *dtype*; itself if none needs it.

    So containers that a module writes into, such as a list that layers append to, stay the caller's own.
    """
    leaves, structure = pytree.tree_flatten(value)
    cast = [leaf.to(dtype) if _is_float(leaf) else leaf for leaf in leaves]
    if all(new is old for new, old in zip(cast, leaves, strict=True)):
        return value
    made: T = pytree.tree_unflatten(cast, structure)
    return made


def cast_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a call, each cast by ``cast_floats``."""
    cast = {name: cast_floats(value, dtype) for name, value in kwargs.items()}
    return tuple(cast_floats(value, dtype) for value in args), cast


def cast_inputs(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast floating-point inputs of *module*, whose parameters a framework keeps in *dtype*, to *dtype*."""
    module.register_forward_pre_hook(
        lambda _, args, kwargs: cast_arguments(args, kwargs, dtype), with_kwargs=True
    )


def compute_in(module: nn.Module, dtype: torch.dtype) -> None:
    """Make *module* compute with copies of its parameters in *dtype*; gradients keep the parameters' dtype.

    This is what FSDP2's mixed precision does, for strategies that have none of their own: the same
    computation in the same dtype everywhere, unlike autocast, which keeps some operations in fp32. Modules
    inside *module* that already cast are not changed: layers cast themselves, so that recomputing one casts
    again.
    """
    change_forward(module, functools.partial(_casting, dtype=dtype))


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _changed(module: nn.Module, change: Change) -> Forward:
    forward: Forward = module.forward
    return functools.wraps(forward)(change(forward, module))


def _casting(forward: Forward, module: nn.Module, dtype: torch.dtype) -> Forward:
    places = list(_floating_parameters(module))

    def computed(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = cast_arguments(args, kwargs, dtype)
        parameters = [members[name] for members, name in places]
        # one copy per tied parameter
        copies = {parameter: parameter.to(dtype) for parameter in parameters}
        try:
            for (members, name), parameter in zip(places, parameters, strict=True):
                members[name] = copies[parameter]
            return forward(*args, **kwargs)
        finally:
            for (members, name), parameter in zip(places, parameters, strict=True):
                members[name] = parameter

    setattr(computed, _CASTS, True)
    return computed


def _floating_parameters(module: nn.Module) -> Iterator[tuple[dict[str, Any], str]]:
    """Locations of floating-point parameters in *module*, except in modules that cast their own."""
    for name, parameter in module._parameters.items():
        if parameter is not None and parameter.is_floating_point():
            yield module._parameters, name
    for child in module.children():
        if not getattr(vars(child).get("forward"), _CASTS, False):
            yield from _floating_parameters(child)
