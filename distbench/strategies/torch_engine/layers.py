"""The layers of a module: each replaced by a wrapped one."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing


def wrap_layers(
    module: nn.Module, layers: list[nn.Module], wrap: Callable[[nn.Module], nn.Module]
) -> list[nn.Module]:
    """Replace each of *layers* inside *module* by what *wrap* makes of it; return those."""
    chosen, made = {id(layer) for layer in layers}, []

    def wrap_one(layer: nn.Module) -> nn.Module:
        made.append(wrap(layer))
        return made[-1]

    apply_activation_checkpointing(
        module, checkpoint_wrapper_fn=wrap_one, check_fn=lambda layer: id(layer) in chosen
    )
    return made
