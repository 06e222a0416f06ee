"""Live bytes of a step of a pipeline with one stage on each rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distbench.prediction.lifetimes import ParameterBytes
from distbench.prediction.live_bytes import LiveBytes, ModelMemory, boundary_layers
from distbench.workloads.operations import parameters_of


@dataclass(frozen=True)
class Stage:
    """Stage of a pipeline, with the parts of a micro-batch that it computes one after another."""

    layers: int
    is_first: bool
    is_last: bool
    parts: int
    """Parts of a micro-batch of the suite, for one of which the operations of the model are."""
    in_flight: int
    """Parts whose activations it holds at once."""


def stage_memory(memory: ModelMemory, stage: Stage, weights: ParameterBytes) -> Iterator[LiveBytes]:
    """Yield the live bytes of the step of the rank with *stage*.

    torch makes the arrays for what a stage receives at the beginning: the inputs of all parts, and the
    gradients of their outputs.
    """
    model, layer = memory.model, memory.layer
    received = stage.parts * model.activation * ((not stage.is_first) + (not stage.is_last))
    # the input of the first layer is one of the arrays
    is_saved = not stage.is_first and "x" in (name for each in model.layer for name in each.saved_tensors)
    part = stage.layers * layer.saved - (model.activation if is_saved else 0) + model.shared
    logits = model.last[-1].size if stage.is_last else 0.0
    output = 0.0 if stage.is_last else model.activation
    if stage.is_last:
        part += memory.head.saved + memory.loss.saved
    # those of an earlier micro-batch of the suite are always there
    all_gradients = 0.0 if memory.accumulates else _gradients(memory, stage, weights)
    # with the first backward pass no gradient exists, with those after it all do
    for in_flight, has_gradients in ((stage.in_flight, False), (min(stage.in_flight, stage.parts - 1), True)):
        if in_flight < 1:
            continue
        others = (in_flight - 1) * (part + output) + received + in_flight * logits
        earlier = all_gradients if has_gradients else 0.0
        yield from _backward_memory(memory, stage, weights, others, earlier)
    yield memory.live_bytes(
        (stage.in_flight - 1) * (part + output) + received + part + _forward_working(memory, stage)
    )


def _gradients(memory: ModelMemory, stage: Stage, weights: ParameterBytes) -> float:
    model = memory.model
    elements = stage.layers * parameters_of(model.layer)
    elements += parameters_of(model.first) * stage.is_first + parameters_of(model.last) * stage.is_last
    return elements * (weights.final_gradient or weights.computed_gradient)


def _forward_working(memory: ModelMemory, stage: Stage) -> float:
    """Bytes at the peak of a forward pass beyond what it keeps."""
    if stage.is_last:
        logits = memory.model.last[-1].size
        return max(memory.head.forward_peak - memory.head.saved, logits + memory.loss.forward_peak)
    return memory.layer.forward_peak - memory.layer.saved


def _backward_memory(
    memory: ModelMemory, stage: Stage, weights: ParameterBytes, others: float, earlier: float
) -> Iterator[LiveBytes]:
    """Yield the live bytes of the backward pass of a part, beside *others* bytes and *earlier* gradients."""
    model, layer = memory.model, memory.layer
    is_new = not (earlier or memory.accumulates)
    final = weights.final_gradient or weights.computed_gradient
    head = parameters_of(model.last) * final * stage.is_last * is_new
    if stage.is_last:
        # the logits that it begins with are among those that are kept
        loss_peak = stage.layers * layer.saved + memory.end.backward_peak
        yield memory.live_bytes(others + loss_peak, earlier, logits=memory.loss_arrays)
    for place in boundary_layers(stage.layers):
        later = (stage.layers - 1 - place) * parameters_of(model.layer) * final * is_new
        yield memory.live_bytes(others + place * layer.saved + layer.backward_peak, earlier + head + later)
    if stage.is_first:
        table = parameters_of(model.first) * (weights.computed_gradient + weights.final_gradient)
        done = stage.layers * parameters_of(model.layer) * final * is_new
        yield memory.live_bytes(others, earlier + done + table)
