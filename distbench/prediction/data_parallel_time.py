"""Seconds that data parallelism adds to a step: collectives of parameters and gradients."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.prediction.collectives import Group, all_reduce_seconds, exposed_seconds, gather_seconds
from distbench.prediction.hardware import Hardware
from distbench.prediction.layout import StepLayout


@dataclass(frozen=True)
class DataParallelTime:
    """Collectives of a step over equal layers and one table (embedding or head)."""

    layout: StepLayout
    hardware: Hardware
    layers: int
    """Layers of a rank."""
    layer_parameters: float
    """Parameters of a layer on a rank, before they are sharded."""
    vocab_parameters: float

    @property
    def shard_group(self) -> Group:
        """Ranks that parameters are sharded over."""
        return Group(self.layout.shards * self.layout.context, self.layout.tensor)

    @property
    def replica_group(self) -> Group:
        """Ranks that have the same shard."""
        return Group(self.layout.replicas, self.layout.tensor * self.shard_group.size)

    @property
    def groups(self) -> list[Group]:
        """All groups that communicate."""
        return [self._reduction_group] if self._is_replicated else [self.shard_group, self.replica_group]

    @property
    def updated_parameters(self) -> float:
        """Parameters that a rank updates."""
        whole = self.layers * self.layer_parameters + self.vocab_parameters
        return whole if self._is_replicated else whole / self.shard_group.size

    def seconds(self, forward: float, backward: float) -> float:
        """Seconds in which a rank only communicates, if a layer computes for *forward* and *backward*.

        A layer's parameters are gathered while the layer before it computes, and its gradients are reduced
        while the next one does. What is gathered first and reduced last is hidden by nothing.
        """
        layout = self.layout
        rounds = layout.micro_batches // layout.parts
        times = {"never": 0, "step": 1, "micro_batch": rounds, "pass": layout.micro_batches}
        gathers, reductions = times[layout.gather_frequency], times[layout.reduce_frequency]
        backward_gathers = gathers if layout.gather_frequency == "pass" else 0
        gather, reduction = self._gather(self.layer_parameters), self._reduction(self.layer_parameters)
        both = min(backward_gathers, reductions)
        hides, hides_reduction = layout.overlaps_gathers, layout.overlaps_reductions
        inside = (
            gathers * exposed_seconds(gather, forward, is_hidden=hides)
            + both * exposed_seconds(gather + reduction, backward, is_hidden=hides and hides_reduction)
            + (backward_gathers - both) * exposed_seconds(gather, backward, is_hidden=hides)
            + (reductions - both) * exposed_seconds(reduction, backward, is_hidden=hides_reduction)
        )
        ends = gathers * self._gather(self.vocab_parameters)
        return self.layers * inside + ends + reductions * self._reduction(self.vocab_parameters)

    @property
    def _is_replicated(self) -> bool:
        return self.layout.gather_frequency == "never"

    @property
    def _reduction_group(self) -> Group:
        return Group(self.shard_group.size * self.layout.replicas, self.layout.tensor)

    def _gather(self, parameters: float) -> float:
        return gather_seconds(parameters * self.layout.parameter_bytes, self.shard_group, self.hardware)

    def _reduction(self, parameters: float) -> float:
        size = parameters * self.layout.gradient_bytes
        if self._is_replicated:
            return all_reduce_seconds(size, self._reduction_group, self.hardware)
        seconds = all_reduce_seconds if self.layout.reduce_op == "all_reduce" else gather_seconds
        shard = size / self.shard_group.size
        return seconds(size, self.shard_group, self.hardware) + all_reduce_seconds(
            shard, self.replica_group, self.hardware
        )
