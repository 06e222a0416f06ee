"""The file of a full training state: safetensors, which hold tensors and no code."""

from pathlib import Path

from safetensors.torch import save_file

from distbench.files import whole
from distbench.strategies.base import FullState
from distbench.workloads import weights


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
        save_file(weights.apart(named), aside)


def read(file: Path) -> FullState:
    """State that ``write`` wrote."""
    state = FullState()
    for key, tensor in weights.read(file).items():
        kind, _, name = key.partition("/")
        if kind == "optimizer":
            moment, _, name = name.partition("/")
            state.optimizer.setdefault(name, {})[moment] = tensor
        else:
            (state.parameters if kind == "parameters" else state.buffers)[name] = tensor
    return state
