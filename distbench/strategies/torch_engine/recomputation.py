"""Activation checkpointing: which layers recompute what in the backward pass, and reading it back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper, checkpoint_wrapper
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from distbench.case import KEPT_OPERATIONS, Case
from distbench.strategies.torch_engine.layers import wrap_layers

_KEPT = [getattr(torch.ops.aten, name).default for name in KEPT_OPERATIONS]


def checkpointed_layers(case: Case, module: nn.Module, layers: list[nn.Module]) -> list[nn.Module]:
    """Wrap *layers* inside *module* to recompute what *case* says; return the layers."""
    if case.activation_checkpointing == "none":
        return layers
    return wrap_layers(module, layers, _WRAPPERS[case.activation_checkpointing])


def describe_checkpointing(module: nn.Module) -> dict[str, Any]:
    """What the live module recomputes, and in how many layers; several kinds are joined with ``+``."""
    wrapped = [layer for layer in module.modules() if isinstance(layer, CheckpointWrapper)]
    kinds = {"selective" if "context_fn" in layer.checkpoint_fn.keywords else "full" for layer in wrapped}
    return {
        "activation_checkpointing": "+".join(sorted(kinds)) or "none",
        "checkpointed_layers": len(wrapped),
    }


_WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "full": checkpoint_wrapper,
    "selective": partial(checkpoint_wrapper, context_fn=partial(create_selective_checkpoint_contexts, _KEPT)),
}
