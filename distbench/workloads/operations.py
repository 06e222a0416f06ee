"""Operations of a model as a prediction of memory needs them: which tensors they make, and keep. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Operation:
    """Operation of a forward pass, with what autograd keeps for its backward pass. Sizes are in bytes."""

    result: str
    """Name of the tensor that it makes."""
    inputs: tuple[str, ...]
    """Tensors of which it has gradients."""
    size: float
    saved_tensors: tuple[str, ...] = ()
    """Tensors, by name, that its backward pass needs."""
    saved_bytes: float = 0.0
    """Tensors without a name that its backward pass needs: of a norm, its normalized input."""
    parameters: int = 0
    """Elements of its own parameter."""
    rows: int = 1
    """Rows of that parameter, by which it is sharded."""
    workspace: float = 0.0
    """Further tensors at its peak in the forward pass."""
    backward_workspace: float = 0.0
    """Further tensors at its peak in the backward pass, besides the gradients of inputs and parameters."""
    passes_gradient: bool = False
    """The gradients of its inputs are that of its result: a sum, or another view."""
    is_in_loss: bool = False
    """A caller holds its inputs until the loss is known."""


@dataclass(frozen=True)
class RowSplit:
    """Part of a micro-batch that a rank computes, and in which dtype."""

    rows: int
    element: int
    """Bytes of an element of the compute dtype."""
    tensor: int = 1
    """Ranks that split every layer (tensor parallelism)."""
    sequence_parallel: bool = False
    loss_parallel: bool = False
    context: int = 1
    """Ranks that split rows by position (context parallelism)."""
    fuses_norms: bool = False
    """A norm is one kernel, which keeps its input and a number for each token, as CUDA's does."""


@dataclass(frozen=True)
class ModelOperations:
    """Operations of a model whose layers are alike, for one micro-batch; the input of each part is ``x``."""

    first: tuple[Operation, ...]
    """Before the layers: the lookup of an embedding. It has no gradient of its input."""
    layer: tuple[Operation, ...]
    layers: int
    last: tuple[Operation, ...]
    """After the layers, up to the output of the model."""
    loss: tuple[Operation, ...]
    """Of the loss; its input is that output."""
    activation: float
    """Bytes of a tensor between layers."""
    shared: float
    """Bytes of tensors that all layers use and that nobody trains: angles of positions."""
    partial_parameters: int = 0
    """Elements of the gradient of ``first`` as a rank computes it, if it is a part of a sum over the ranks
    that split it: all rows, until it is summed. A table that is not tied waits for the end of the step."""
    tied_parameters: int = 0
    """Elements of the parameter that ``first`` and ``last`` share; 0: none."""

    @property
    def end(self) -> tuple[Operation, ...]:
        """``last`` and ``loss`` as one part."""
        output = self.last[-1].result
        renamed = (
            replace(each, inputs=tuple(output if name == "x" else name for name in each.inputs))
            for each in self.loss
        )
        return (*self.last, *renamed)


def parameters_of(operations: Iterable[Operation]) -> int:
    """Elements of the parameters of *operations*."""
    return sum(each.parameters for each in operations)


def last_parameters(operations: Sequence[Operation]) -> int:
    """Elements of the last parameter of *operations*, whose gradient is the first to exist."""
    return next(each.parameters for each in reversed(operations) if each.parameters)
