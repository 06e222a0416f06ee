"""Order in which a forward pass calls the modules of a model. Without torch."""

from __future__ import annotations

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
