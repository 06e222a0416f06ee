"""Live bytes of a step under DeepSpeed's ZeRO, whose parameters are in the compute dtype."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distbench.prediction.lifetimes import ParameterBytes
from distbench.prediction.live_bytes import (
    LiveBytes,
    ModelMemory,
    backward_memory,
    boundary_layers,
    loss_memory,
)
from distbench.workloads.operations import last_parameters, parameters_of


@dataclass(frozen=True)
class ZeroBuffers:
    """Buffers of DeepSpeed beside model states, in bytes, and what it does with gradients."""

    bucket: float
    """Gradients wait in it for their reduction; 0: they are reduced where they are."""
    is_permanent: bool
    """The bucket exists between backward passes."""
    reduction: float
    """Copies of the bucket while it is reduced."""
    live: float
    """Gathered parameters that stage 3 does not release."""
    shard: float
    """Gradients of this rank, in an array that is made with the first reduction; 0: they are elsewhere."""
    update: float
    """Gradients of the shard in one array, and converted to the dtype of the master weights."""


def zero_memory(memory: ModelMemory, weights: ParameterBytes, buffers: ZeroBuffers) -> Iterator[LiveBytes]:
    """Yield the live bytes of a step.

    Hooks take each gradient as soon as it exists, and copy it to a bucket. A full bucket is reduced when the
    next gradient comes: the first one of the layer before. Stages 1 and 2 then make an array for the shard of
    all gradients; stage 3 has it all the time.
    """
    begun = buffers.bucket if buffers.is_permanent else 0.0
    for live in loss_memory(memory, weights):
        yield {**live, "buckets": begun, "gathered": buffers.live}
    for live in _layer_memory(memory, weights, buffers):
        yield {**live, "gathered": buffers.live}
    *_, last = backward_memory(memory, weights, weights)
    ended = last["gradients"] + buffers.shard
    yield {**last, "gradients": ended, "buckets": buffers.bucket, "gathered": buffers.live}
    update = memory.live_bytes(-memory.model.shared, 0 if memory.accumulates else memory.states["gradients"])
    yield {**update, "activations": buffers.update, "gathered": buffers.live}


def _layer_memory(memory: ModelMemory, weights: ParameterBytes, buffers: ZeroBuffers) -> Iterator[LiveBytes]:
    model, layer = memory.model, memory.layer
    head = 0.0 if weights.accumulates else parameters_of(model.last) * weights.computed_gradient
    first = last_parameters(model.layer) * weights.computed_gradient
    for place in boundary_layers(model.layers):
        later = model.layers - 1 - place
        shard = buffers.shard if later else 0.0
        whole = head + later * layer.gradients + shard
        saved = place * layer.saved
        yield {**memory.live_bytes(saved + layer.backward_peak, whole), "buckets": buffers.bucket}
        if later:
            buckets = buffers.bucket + buffers.reduction
            yield {**memory.live_bytes(saved + layer.backward_start + first, whole), "buckets": buckets}
