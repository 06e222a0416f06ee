"""The file of a whole training: safetensors, which hold tensors and nothing that could run."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from distbench.files import whole
from distbench.strategies.base import FullState
from distbench.workloads._weights import apart


def write(state: FullState, file: Path) -> None:
    """Write *state* aside, flush it to the disk, and rename it into place.

    Raises:
        OSError: it could not be written; there is no file then.
    """
    named = {f"parameters/{name}": tensor for name, tensor in state.parameters.items()}
    named |= {f"buffers/{name}": tensor for name, tensor in state.buffers.items()}
    for name, moments in state.optimizer.items():
        named |= {f"optimizer/{moment}/{name}": tensor for moment, tensor in moments.items()}
    with whole(file) as aside:
        save_file(apart(named), aside)


def read(file: Path) -> FullState:
    """Return what ``write`` wrote."""
    state = FullState()
    with safe_open(file, framework="pt") as opened:
        for key in opened.keys():  # noqa: SIM118 - no mapping
            kind, _, name = key.partition("/")
            tensor: torch.Tensor = opened.get_tensor(key)
            if kind == "optimizer":
                moment, _, name = name.partition("/")
                state.optimizer.setdefault(name, {})[moment] = tensor
            else:
                (state.parameters if kind == "parameters" else state.buffers)[name] = tensor
    return state
