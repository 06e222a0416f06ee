"""Strategies and meshes that are worth trying on nodes with equal GPUs, each with the reason."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.cli.suite_template import SuiteGoal
from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.core.machine import Machine

SAMPLES = 8
"""Samples per step on each device with the most devices, at least."""
_MOST_SAMPLES = 2 * SAMPLES
"""Samples that they are at most, without numbers of devices that were asked for."""
MICRO_BATCHES = (1, 2, 4)
"""Samples of a micro-batch without a pipeline."""
_MOST_TENSOR_RANKS = 8


@dataclass(frozen=True)
class Proposal:
    """A strategy, and why it may be the best one."""

    name: str
    options: dict[str, Any]
    reason: str
    spans_nodes: bool = False
    """True: it is for several nodes."""
    micro_batch: int | None = None
    """Samples of its micro-batch; None: ``MICRO_BATCHES``."""

    @property
    def label(self) -> str:
        """Label of its cases."""
        label: str = registry.create_plugin("strategies", PluginChoice(self.name, self.options)).label
        return label


def global_batch(sizes: Sequence[int]) -> int:
    """Samples of a step that the devices of each of *sizes* share evenly, in all ``MICRO_BATCHES``."""
    unit = math.lcm(*sizes) * MICRO_BATCHES[-1]
    return unit * math.ceil(SAMPLES * max(sizes) / unit)


def samples_per_device(sizes: Sequence[int]) -> int:
    """Samples of ``global_batch`` on each device with the most devices."""
    return global_batch(sizes) // max(sizes)


def has_usual_samples(sizes: Sequence[int]) -> bool:
    """True if *sizes* share a batch in which each device has about ``SAMPLES``."""
    return samples_per_device(sizes) <= _MOST_SAMPLES


def propose(machine: Machine, heads: int, sizes: Sequence[int], goal: SuiteGoal) -> Iterator[Proposal]:
    """Yield the proposals for *sizes* of the devices of *machine*, and layers with *heads* to split.

    Dimensions that communicate most stay inside a node; pipeline stages are on different ones.
    """
    per_node = machine.devices_per_node
    if min(sizes) == 1:
        yield Proposal("single", {}, "one GPU without communication: what the others are compared with")
    if max(sizes) == 1:
        return
    yield from _data_parallel(goal)
    # a replica on each node takes memory
    if goal == "throughput" and max(sizes) > per_node > 1:
        yield Proposal(
            "fsdp",
            {"sharding": "hybrid", "shards": per_node},
            f"sharded over the {per_node} GPUs of a node and replicated across nodes, which only gradients "
            "cross: less traffic there than fsdp, and more memory",
            spans_nodes=True,
        )
    tensor = _tensor_ranks(min(per_node, max(sizes)), heads)
    # the fewest and the most
    for ranks in dict.fromkeys([*tensor[:1], *tensor[-1:]]):
        yield Proposal(
            "fsdp",
            {"mesh": {"tp": ranks}, "sequence_parallel": True, "loss_parallel": True},
            f"each layer split over {ranks} GPUs of a node, and sharded over the rest: less memory for "
            "activations, and collectives in each layer, which stay inside a node",
        )
    if max(sizes) > per_node:
        yield from _pipelines(per_node, tensor[-1] if tensor else 1, global_batch(sizes))


def _data_parallel(goal: SuiteGoal) -> Iterator[Proposal]:
    if goal == "throughput":
        yield Proposal("ddp", {}, "the whole model on each GPU: least traffic, most memory")
        yield Proposal("zero", {"stage": 1}, "as ddp, with optimizer states sharded over all GPUs")
        yield Proposal(
            "fsdp",
            {"sharding": "grad_op"},
            "as fsdp, with parameters kept from forward to backward: less traffic, more memory",
        )
    yield Proposal(
        "fsdp",
        {},
        "parameters, gradients and optimizer states sharded over all GPUs, gathered by layer",
    )
    if goal == "memory":
        yield Proposal("zero", {"stage": 3}, "DeepSpeed's way to shard all that fsdp shards")


def _pipelines(per_node: int, tensor: int, samples: int) -> Iterator[Proposal]:
    """Yield pipelines with a stage on each node.

    Each takes all samples of a step as one micro-batch, so that it fills and drains once.
    """
    parts = samples // per_node
    each = f"The samples of a step are one micro-batch, in {parts} parts, so that it fills and drains once"
    yield Proposal(
        "pp",
        {"micro_batches": parts, **({"mesh": {"dp_shard": per_node}} if per_node > 1 else {})},
        f"a pipeline stage on each node, sharded over its GPUs: only activations cross nodes. {each}",
        spans_nodes=True,
        micro_batch=parts,
    )
    if tensor > 1:
        rest = per_node // tensor
        yield Proposal(
            "pp",
            {
                "micro_batches": parts,
                "mesh": {"tp": tensor, **({"dp_shard": rest} if rest > 1 else {})},
                "sequence_parallel": True,
                "loss_parallel": True,
            },
            f"a pipeline stage on each node, whose layers are split over {tensor} GPUs. {each}",
            spans_nodes=True,
            micro_batch=parts * tensor,
        )


def _tensor_ranks(most: int, heads: int) -> list[int]:
    """Powers of two up to *most* that divide it and *heads*."""
    powers = (2**i for i in range(1, most.bit_length()))
    return [each for each in powers if each <= _MOST_TENSOR_RANKS and not (most % each or heads % each)]
