"""Activation checkpointing: recompute layers in the backward pass, and read it back."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from distbench.core.case import SELECTIVE_CHECKPOINT_OPS, Case
from distbench.strategies.torch_engine.forwards import Forward, change_forward

_SAVED_OPERATIONS = [getattr(torch.ops.aten, name).default for name in SELECTIVE_CHECKPOINT_OPS]
_OPTIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "selective": {"context_fn": partial(create_selective_checkpoint_contexts, _SAVED_OPERATIONS)},
}
_MARK = "_distbench_recomputes"
"""Attribute of a forward pass with the kind of its recomputation."""


def checkpoint_layers(case: Case, layers: list[nn.Module]) -> None:
    """Make *layers* recompute as *case* specifies."""
    kind = case.activation_checkpointing
    if kind != "none":
        for layer in layers:
            change_forward(layer, partial(_checkpointed_forward, kind=kind))


def describe_checkpointing(module: nn.Module) -> dict[str, Any]:
    """Kind of recomputation of the live module, and number of layers; several kinds are joined with ``+``."""
    kinds = [kind for layer in module.modules() if (kind := getattr(vars(layer).get("forward"), _MARK, ""))]
    return {
        "activation_checkpointing": "+".join(sorted(set(kinds))) or "none",
        "checkpointed_layers": len(kinds),
    }


def _checkpointed_forward(forward: Forward, _module: nn.Module, kind: str) -> Forward:
    # torch.compile accepts no context that is looked up in the call
    run: Any = partial(checkpoint, use_reentrant=False, **_OPTIONS[kind])

    def recomputed(*args: Any, **kwargs: Any) -> Any:
        return run(forward, *args, **kwargs)

    setattr(recomputed, _MARK, kind)
    return recomputed
