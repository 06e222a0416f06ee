"""Order in which a forward pass calls the modules of a model. Without torch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ModuleCall:
    """A call of a module by a forward pass."""

    parameters: tuple[tuple[str, int], ...] = ()
    """Name and elements of each parameter that is its own; modules that share one use the same name."""
    calls: tuple[ModuleCall, ...] = ()
    """Calls of other modules inside it, in their order."""
    multiplies: bool = False
    """True if it multiplies matrices with its own parameters."""
    ends_with_product: bool = False
    """True if it is a layer that activation checkpointing recomputes up to the operands of its last product,
    which the last of the modules inside it makes."""
    takes_data: bool = False
    """True if none of its inputs has a gradient."""


@dataclass(frozen=True)
class FlatModuleCall:
    """A call of a module by a forward pass, as one in the order in which they begin."""

    depth: int
    """Number of calls that it is inside of."""
    parameters: tuple[tuple[str, int], ...] = ()
    """As in ``ModuleCall``, and so are the other fields."""
    multiplies: bool = False
    takes_data: bool = False


def nested_calls(calls: Sequence[FlatModuleCall]) -> ModuleCall | None:
    """The first of *calls*, with the others inside it; None: there are none."""
    if not calls:
        return None
    first, *rest = calls
    begins = [place for place, call in enumerate(rest) if call.depth == first.depth + 1]
    parts = [rest[begin:end] for begin, end in itertools.pairwise([*begins, len(rest)])]
    inside = tuple(call for part in parts if (call := nested_calls(part)))
    return ModuleCall(first.parameters, inside, multiplies=first.multiplies, takes_data=first.takes_data)
