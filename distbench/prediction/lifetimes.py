"""Bytes that the operations of a part of a model hold: after the forward pass, and at the peak of each pass.

Tensors live as autograd lets them: a result until its last use, or until the backward pass of the operations
that save it; a gradient until it is used, or, for a parameter, until the optimizer's step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from distbench.workloads.operations import Operation


@dataclass(frozen=True)
class ParameterBytes:
    """Bytes of an element of a parameter outside of its stored values."""

    cast_copy: float = 0.0
    """Of a copy in the compute dtype, made in each forward pass and kept for the backward pass."""
    computed_gradient: float = 0.0
    """Of its gradient as the backward pass makes it."""
    final_gradient: float = 0.0
    """Of its gradient as the optimizer gets it; 0: the backward pass leaves the computed one."""
    accumulates: bool = False
    """True if gradients of an earlier micro-batch exist, to which those of this one are added."""


@dataclass(frozen=True)
class PartMemory:
    """Bytes of a part of a model, above what existed before it."""

    saved: float
    """After the forward pass, without its result: the tensors and copies that the backward pass needs."""
    forward_peak: float
    backward_peak: float
    """At once in the backward pass, which begins with ``saved`` and the gradient of its result."""
    backward_start: float
    """At the beginning of the backward pass: all tensors that it needs, and the gradient of the result."""
    gradients: float
    """Gradients that it leaves, besides that of its input."""
    copies: float = 0.0
    """Copies of parameters in ``saved``."""


class _Count:
    """Bytes now, and the most so far."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = self.peak = now

    def add(self, size: float) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


def part_memory(
    operations: Sequence[Operation], source: float, weights: ParameterBytes, *, recomputes: bool = False
) -> PartMemory:
    """Memory of *operations*, whose input has *source* bytes.

    Args:
        recomputes: Keep only the input, and repeat the forward pass in the backward pass, up to the last
            tensor that is needed there.
    """
    forward = _Count()
    saved_bytes = _run_forward(operations, source, weights, forward)
    copies = weights.cast_copy * sum(each.parameters for each in operations)
    result = operations[-1].size
    backward = _Count(saved_bytes + result)
    gradients = _run_backward(operations, weights, backward)
    if not recomputes:
        return PartMemory(saved_bytes, forward.peak, backward.peak, saved_bytes + result, gradients, copies)
    recomputation = _Count(result)
    _run_forward(_until_last_saved(operations), source, weights, recomputation)
    # the input is kept whether the operations need it or not
    input_bytes = source if not _saves(operations, "x") else 0.0
    peak = max(recomputation.peak, backward.peak + input_bytes)
    return PartMemory(source, forward.peak, peak, saved_bytes + input_bytes + result, gradients)


def _run_forward(
    operations: Sequence[Operation], source: float, weights: ParameterBytes, count: _Count
) -> float:
    """Count the forward pass in *count*; return what it keeps."""
    sizes = {"x": source, **{each.result: each.size for each in operations}}
    saved = {name for each in operations for name in each.saved_tensors}
    uses = Counter(name for each in operations for name in each.inputs)
    count.add(source + weights.cast_copy * sum(each.parameters for each in operations))
    loss_input_bytes = 0.0
    for each in operations:
        count.add(each.saved_bytes + each.size)
        count.add(each.workspace)
        count.now -= each.workspace
        for name in each.inputs:
            uses[name] -= 1
            if uses[name] or name in saved or name == "x":
                continue
            if each.is_in_loss:
                loss_input_bytes += sizes[name]
            else:
                count.now -= sizes[name]
    return count.now - loss_input_bytes - _unsaved(sizes, saved, ("x", operations[-1].result))


def _unsaved(sizes: dict[str, float], saved: set[str], names: Sequence[str]) -> float:
    return sum(sizes[name] for name in names if name not in saved)


def _run_backward(operations: Sequence[Operation], weights: ParameterBytes, count: _Count) -> float:
    """Count the backward pass in *count*, which begins with what the forward pass kept; return gradients."""
    sizes = {each.result: each.size for each in operations}
    owners = Counter(name for each in operations for name in each.saved_tensors)
    saved_sizes = {**sizes, "x": operations[0].size}
    pending: dict[str, _Gradient] = {operations[-1].result: _Gradient(operations[-1].size)}
    uncast: list[int] = []
    for each in reversed(operations):
        gradient = pending.pop(each.result)
        count.add(each.backward_workspace)
        own = each.parameters * weights.computed_gradient
        count.add(own)
        for name in each.inputs:
            new = gradient if each.passes_gradient else _Gradient(_size_of(name, sizes, operations))
            if new is gradient:
                gradient.owners += 1
            else:
                count.add(new.size)
            if (other := pending.get(name)) is not None:
                added = _Gradient(other.size)
                count.add(added.size)
                _release(other, count)
                _release(new, count)
                new = added
            pending[name] = new
        count.now -= each.backward_workspace + each.saved_bytes + each.parameters * weights.cast_copy
        _release(gradient, count)
        for name in each.saved_tensors:
            owners[name] -= 1
            if not owners[name]:
                count.now -= saved_sizes[name]
        if weights.final_gradient:
            # autograd goes back to the casts, the first operations of a layer, last
            uncast.append(each.parameters)
        elif weights.accumulates:
            count.now -= own
    for parameters in uncast:
        count.add(parameters * weights.final_gradient)
        count.now -= parameters * (
            weights.computed_gradient + (weights.final_gradient if weights.accumulates else 0)
        )
    gradient_bytes = 0.0 if weights.accumulates else weights.final_gradient or weights.computed_gradient
    return gradient_bytes * sum(each.parameters for each in operations)


class _Gradient:
    """Gradient of a tensor, which several tensors may share."""

    def __init__(self, size: float) -> None:
        self.size, self.owners = size, 1


def _release(gradient: _Gradient, count: _Count) -> None:
    gradient.owners -= 1
    if not gradient.owners:
        count.now -= gradient.size


def _size_of(name: str, sizes: dict[str, float], operations: Sequence[Operation]) -> float:
    # the input of a part has the size of what its first operation makes of it
    return sizes.get(name, operations[0].size)


def _saves(operations: Sequence[Operation], name: str) -> bool:
    return any(name in each.saved_tensors for each in operations)


def _until_last_saved(operations: Sequence[Operation]) -> Sequence[Operation]:
    """*operations* up to the one that makes the last tensor that a backward pass needs."""
    saved = {name for each in operations for name in each.saved_tensors}
    last = max(place for place, each in enumerate(operations) if each.result in saved or each.saved_bytes)
    return operations[: last + 1]
