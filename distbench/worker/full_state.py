"""The file of a full training state: safetensors, which hold tensors and no code."""

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from distbench.files import whole
from distbench.strategies.base import FullState
from distbench.workloads.weights import apart


def write(state: FullState, file: Path) -> None:
    """Write *state* to a temporary file, flush it to disk and rename it to *file*.

    Raises:
        OSError: it could not be written; *file* does not exist then.
    """
    named = {f"parameters/{name}": tensor for name, tensor in state.parameters.items()}
    named |= {f"buffers/{name}": tensor for name, tensor in state.buffers.items()}
    for name, moments in state.optimizer.items():
        named |= {f"optimizer/{moment}/{name}": tensor for moment, tensor in moments.items()}
    with whole(file) as aside:
        save_file(apart(named), aside)


def read(file: Path) -> FullState:
    """State that ``write`` wrote."""
    state = FullState()
    with safe_open(file, framework="pt") as opened:
        for key in opened.keys():  # noqa: SIM118 - not a mapping
            kind, _, name = key.partition("/")
            tensor: torch.Tensor = opened.get_tensor(key)
            if kind == "optimizer":
                moment, _, name = name.partition("/")
                state.optimizer.setdefault(name, {})[moment] = tensor
            else:
                (state.parameters if kind == "parameters" else state.buffers)[name] = tensor
    return state
