"""Live bytes of a step under FSDP2, which gathers the parameters of one layer after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distbench.prediction.live_bytes import LiveBytes, ModelMemory, boundary_layers
from distbench.workloads.operations import ModelOperations, Operation, last_parameters, parameters_of


@dataclass(frozen=True)
class ShardLayout:
    """Division of units over ranks, and the bytes of an element as they gather and reduce it."""

    shards: int
    compute: int
    reduce: int
    master: int
    reshards: bool
    """Layers are sharded again after their forward pass."""
    copies_in_collectives: bool
    """gloo copies the whole array of an all-gather and of a reduce-scatter while it runs."""
    casts: bool
    """Shards are converted to the compute dtype before they are gathered."""
    keeps_gradients: bool
    """False: the optimizer updates a unit as soon as its gradients are reduced."""

    def padded_elements(self, operations: Sequence[Operation]) -> int:
        """Elements of the parameters of *operations*, with as many rows of each on every rank."""
        return sum(
            each.parameters // each.rows * -(-each.rows // self.shards) * self.shards for each in operations
        )

    def padded_root(self, model: ModelOperations) -> int:
        """Padded elements of the unit with embedding, norm and head."""
        first = self.padded_elements(model.first)
        return self.padded_elements(model.last) + (0 if model.tied_parameters else first)

    def padding_ratio(self, model: ModelOperations) -> float:
        """Ratio of the elements that ranks have together to those of the model."""
        root = parameters_of(model.first) + parameters_of(model.last) - model.tied_parameters
        whole = root + model.layers * parameters_of(model.layer)
        return (self.padded_root(model) + model.layers * self.padded_elements(model.layer)) / whole

    def gather_bytes(self, unit: float) -> float:
        """Bytes while an all-gather of *unit* bytes runs: its array, its copy, and this rank's part."""
        return unit * (1 + self.copies_in_collectives + self.casts / self.shards)


def sharded_memory(memory: ModelMemory, layout: ShardLayout) -> Iterator[LiveBytes]:
    """Yield the live bytes of a step in which each layer is a unit, and embedding, norm and head are another.

    A unit exists twice while it is gathered: what the all-gather returns is copied to the parameters. In the
    forward pass what it returned stays until the next unit is gathered; in the backward pass a unit is
    gathered while the one after it computes. The array of a reduce-scatter stays until the next one. Every
    rank has as many rows of each matrix as all others, so those that the ranks don't divide are padded.
    """
    yield from _forward_memory(memory, layout)
    yield from _loss_memory(memory, layout)
    for place in boundary_layers(memory.model.layers):
        yield from _layer_memory(memory, layout, place)
    yield from _root_memory(memory, layout)


def _stays(memory: ModelMemory, layout: ShardLayout, layers: int) -> float:
    """Gathered bytes of the root, and of *layers* layers if they stay gathered."""
    of_layers = 0 if layout.reshards else layers * layout.padded_elements(memory.model.layer)
    return (layout.padded_root(memory.model) + of_layers) * layout.compute


def _forward_memory(memory: ModelMemory, layout: ShardLayout) -> Iterator[LiveBytes]:
    model, layer = memory.model, memory.layer
    unit = layout.padded_elements(model.layer) * layout.compute
    before, stays = (model.layers - 1) * layer.saved, _stays(memory, layout, model.layers - 1)
    earlier = unit if model.layers > 1 else layout.padded_root(model) * layout.compute
    forward_start = before + model.activation
    yield memory.live_bytes(
        forward_start, gathered=stays + earlier + max(layout.gather_bytes(unit), 2 * unit)
    )
    yield memory.live_bytes(before + layer.forward_peak, gathered=stays + 2 * unit)
    saved, stays = model.layers * layer.saved, _stays(memory, layout, model.layers)
    yield memory.live_bytes(saved + memory.head.forward_peak, gathered=stays + unit)
    logits = memory.loss.forward_peak
    yield memory.live_bytes(saved + memory.head.saved + logits, logits=logits, gathered=stays)


def _loss_memory(memory: ModelMemory, layout: ShardLayout) -> Iterator[LiveBytes]:
    model = memory.model
    saved, stays = model.layers * memory.layer.saved, _stays(memory, layout, model.layers)
    yield memory.live_bytes(saved + memory.end.backward_peak, logits=memory.loss_arrays, gathered=stays)
    if layout.reshards:
        unit = layout.padded_elements(model.layer) * layout.compute
        logits = model.last[-1].size
        yield memory.live_bytes(
            saved + memory.head.saved + logits, logits=logits, gathered=stays + layout.gather_bytes(unit)
        )
        yield memory.live_bytes(saved + memory.head.backward_peak, logits=logits, gathered=stays + unit)


def _layer_memory(memory: ModelMemory, layout: ShardLayout, place: int) -> Iterator[LiveBytes]:
    """Yield the live bytes of the backward pass of layer *place*, from 0."""
    model, layer = memory.model, memory.layer
    elements = layout.padded_elements(model.layer)
    unit = elements * layout.compute
    stays = _stays(memory, layout, place)
    head = parameters_of(model.last) * layout.compute
    later = model.layers - 1 - place
    reduced = elements * layout.reduce
    shard = elements * layout.master / layout.shards
    done = head + later * shard * layout.keeps_gradients
    # the array of the reduce-scatter before, and the unit that is gathered for the next layer
    waiting = reduced if later else 0.0
    following = unit if place and layout.reshards else 0.0
    before = place * layer.saved
    if layout.reshards:
        backward_start = before + layer.saved + model.activation
        yield memory.live_bytes(backward_start, done, gathered=stays + 2 * unit + waiting)
        gather_bytes = layout.gather_bytes(following)
        yield memory.live_bytes(backward_start, done, gathered=stays + unit + gather_bytes + waiting)
    yield memory.live_bytes(before + layer.backward_peak, done, gathered=stays + unit + following + waiting)
    # all gradients of the layer, and the array in which they are sent; the last of them is freed after it
    ended = before + model.activation
    raw = parameters_of(model.layer) * layout.compute
    yield memory.live_bytes(ended, done + raw, gathered=stays + following + reduced)
    copied = reduced * layout.copies_in_collectives
    left = last_parameters(model.layer) * layout.compute
    yield memory.live_bytes(ended, done + left + shard, gathered=stays + following + reduced + copied)


def _root_memory(memory: ModelMemory, layout: ShardLayout) -> Iterator[LiveBytes]:
    model = memory.model
    root, elements = layout.padded_root(model), layout.padded_elements(model.layer)
    done = model.layers * elements * layout.master / layout.shards * layout.keeps_gradients
    whole = parameters_of(model.first) + parameters_of(model.last)
    # two gradients of a tied table and their sum, while the last layer is reduced
    gradients = (whole + model.tied_parameters + model.partial_parameters) * layout.compute
    yield memory.live_bytes(0.0, done + gradients, gathered=root * layout.compute + elements * layout.reduce)
    sent = root * layout.reduce
    yield memory.live_bytes(0.0, done + root * layout.compute, gathered=sent)
    shard = root * layout.master / layout.shards
    # as in a layer, the gradient of the last parameter is freed after the reduce-scatter
    left = 0 if model.tied_parameters else last_parameters(model.last) * layout.compute
    copied = sent * layout.copies_in_collectives
    yield memory.live_bytes(0.0, done + left + shard, gathered=sent + copied)
