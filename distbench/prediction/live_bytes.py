"""Live bytes by kind where the memory of a step can be at its peak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distbench.core.case import Case
from distbench.prediction.lifetimes import ParameterBytes, PartMemory, part_memory
from distbench.workloads.operations import ModelOperations, parameters_of

LiveBytes = dict[str, float]
"""Bytes by kind, as in ``MemoryPrediction.kinds``."""


@dataclass(frozen=True)
class ModelMemory:
    """Memory of the parts of a model in a step of a rank."""

    model: ModelOperations
    layer: PartMemory
    head: PartMemory
    """All that is after the layers, without the loss."""
    loss: PartMemory
    end: PartMemory
    """Head and loss."""
    states: Mapping[str, float]
    """``Strategy.model_states``: those between steps."""
    accumulates: bool
    """True if gradients of earlier micro-batches exist."""

    @classmethod
    def of(
        cls,
        case: Case,
        model: ModelOperations,
        states: Mapping[str, float],
        of_layers: ParameterBytes,
        of_ends: ParameterBytes,
    ) -> ModelMemory:
        """Memory of the parts of *model*, whose parameters take what *of_layers* and *of_ends* say."""
        recomputes = case.activation_checkpointing == "full"
        return cls(
            model,
            layer=part_memory(model.layer, model.activation, of_layers, recomputes=recomputes),
            head=part_memory(model.last, model.activation, of_ends),
            loss=part_memory(model.loss, model.last[-1].size, ParameterBytes()),
            end=part_memory(model.end, model.activation, of_ends),
            states=states,
            accumulates=case.batch.gradient_accumulation_steps > 1,
        )

    def live_bytes(
        self, activations: float, gradients: float = 0.0, *, logits: float = 0.0, gathered: float = 0.0
    ) -> LiveBytes:
        """LiveBytes with these bytes besides the states, and with the gradients of earlier micro-batches."""
        earlier = self.states["gradients"] if self.accumulates else 0.0
        return {
            **self.states,
            "gradients": earlier + gradients,
            "activations": activations + self.model.shared - logits,
            "logits": logits,
            "gathered": gathered,
            "buckets": 0.0,
        }

    def update(self, case: Case, largest: float) -> LiveBytes:
        """LiveBytes of the optimizer's step, which has all gradients and its own temporary tensors."""
        live = self.live_bytes(-self.model.shared, 0 if self.accumulates else self.states["gradients"])
        updated = self.states["master"] or self.states["parameters"]
        return {**live, "activations": update_bytes(case, updated, largest)}

    @property
    def loss_arrays(self) -> float:
        """Bytes of the arrays of logits at once in the backward pass of the loss."""
        return self.end.backward_peak - self.head.saved


def update_bytes(case: Case, updated: float, largest: float) -> float:
    """Temporary bytes of the update of *updated* bytes of weights, of which *largest* are of one tensor.

    A fused kernel has none. foreach makes one array of all tensors: the gradients with an L2 penalty, and
    after it the denominators of Adam. The loop makes three for one tensor after another: root, quotient, sum.
    """
    optimizer = case.optimizer
    is_adam = optimizer.name in ("adam", "adamw")
    has_penalty = bool(optimizer.weight_decay) and optimizer.name != "adamw"
    if optimizer.kernel == "fused":
        return 0.0
    if optimizer.kernel == "foreach":
        return updated * (is_adam or has_penalty)
    return largest * (3 * is_adam + has_penalty)


def boundary_layers(layers: int) -> list[int]:
    """Places of the first two of *layers* layers and the last two.

    Between them memory changes by the same amount from layer to layer, so no peak can be there.
    """
    return sorted({0, min(1, layers - 1), max(0, layers - 2), layers - 1})


def replicated_memory(
    memory: ModelMemory, of_ends: ParameterBytes, endings: ParameterBytes
) -> Iterator[LiveBytes]:
    """Yield the live bytes of a step on whole layers, or on the part of each that a rank has."""
    yield from loss_memory(memory, of_ends)
    yield from backward_memory(memory, of_ends, endings)


def loss_memory(memory: ModelMemory, weights: ParameterBytes) -> Iterator[LiveBytes]:
    """Yield the live bytes from the last layer of the forward pass to the head in the backward pass.

    Parameters that are computed with in another dtype are copied: those of a layer in its forward pass, all
    others at its beginning.
    """
    model, layer, live_bytes = memory.model, memory.layer, memory.live_bytes
    last = parameters_of(model.last)
    table = 0 if model.tied_parameters else parameters_of(model.first) * weights.cast_copy
    saved, copies = model.layers * layer.saved, model.layers * layer.copies
    before = saved - layer.saved
    yield live_bytes(before + layer.forward_peak - copies, gathered=copies + table + last * weights.cast_copy)
    yield live_bytes(saved + memory.head.forward_peak - copies, gathered=copies + table)
    logits = memory.loss.forward_peak
    yield live_bytes(saved + memory.head.saved + logits - copies, logits=logits, gathered=copies)
    yield live_bytes(saved + memory.end.backward_peak - copies, logits=memory.loss_arrays, gathered=copies)


def backward_memory(
    memory: ModelMemory, of_ends: ParameterBytes, endings: ParameterBytes
) -> Iterator[LiveBytes]:
    """Yield the live bytes of the backward pass of the layers and the embedding.

    Gradients in another dtype than the parameters are converted at the end of the layer, and those of
    embedding and head at the end of the pass, as *endings* says.
    """
    model, layer = memory.model, memory.layer
    head = 0.0 if of_ends.accumulates else parameters_of(model.last) * of_ends.computed_gradient
    for place in boundary_layers(model.layers):
        copied = place * layer.copies
        later = (model.layers - 1 - place) * layer.gradients
        peak = place * layer.saved + layer.backward_peak - copied
        yield memory.live_bytes(peak, head + later, gathered=copied)
    done = model.layers * layer.gradients
    for ending in _end_gradients(model, of_ends, endings):
        yield memory.live_bytes(0.0, done + ending)


def _end_gradients(
    model: ModelOperations, of_ends: ParameterBytes, endings: ParameterBytes
) -> Iterator[float]:
    """Yield the bytes of the gradients of embedding and head at the end of the backward pass.

    A tied table has two gradients and their sum at once. Conversions come last. What is a part of a sum over
    ranks exists besides the part of the sum that the rank keeps.
    """
    first, last, tied = parameters_of(model.first), parameters_of(model.last), model.tied_parameters
    partial, computed, final = model.partial_parameters, endings.computed_gradient, endings.final_gradient
    head = 0.0 if of_ends.accumulates else last * computed
    if not partial or tied:
        yield head + (first + tied + partial) * computed
    elif not final:
        yield head + (partial + (0 if endings.accumulates else first)) * computed
    else:
        yield (0 if endings.accumulates else last * final) + partial * (computed + final)
    if final and (tied or not partial):
        table_sizes = [first] if tied else [first, last]
        unconverted, converted = sum(table_sizes) * computed, 0.0
        for each in table_sizes:
            yield unconverted + converted + each * final
            unconverted -= each * computed
            converted += 0 if endings.accumulates else each * final
