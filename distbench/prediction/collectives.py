"""Seconds of collectives, by the bandwidth of the links that they cross."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.prediction.hardware import Hardware

_INSIDE = 0.78
"""Share of the links inside a node that collectives of large arrays reach: 235 of 300 GB/s on 8 A100, and 313
of 448 on 8 MI300X (Bekman, Machine Learning Engineering, network/benchmarks)."""
_BETWEEN = 0.9
"""Share of the network's bandwidth that collectives over nodes reach with GPUDirect RDMA."""
_CONTENTION = 0.16
"""Seconds that a second of hidden communication takes from the computation beside it: its kernels use some of
the GPU's processors and of its memory's bandwidth. Chosen with the published rows in view."""
_CALL_INSIDE = 20e-6
_CALL_BETWEEN = 60e-6
"""Seconds of a collective of hardly any bytes, inside a node and over nodes."""


@dataclass(frozen=True)
class Group:
    """*size* ranks, of which each is *stride* ranks from the next."""

    size: int
    stride: int = 1

    def members_per_node(self, hardware: Hardware) -> int:
        """Its ranks that share a node."""
        return max(1, min(self.size, hardware.gpus_per_node // self.stride))

    def crosses_nodes(self, hardware: Hardware) -> bool:
        """True if it has ranks on several nodes."""
        return self.size > self.members_per_node(hardware)


def bandwidth(group: Group, hardware: Hardware) -> float:
    """Bytes/s at which each rank of *group* sends to the next one of a ring.

    Over nodes the network is the slowest link: the GPUs of a node that are in the group share their cards.
    """
    inside = (hardware.inside or 0.0) * _INSIDE
    if group.crosses_nodes(hardware):
        between = group.members_per_node(hardware) * (hardware.between or 0.0) * _BETWEEN
        return min(inside, between) if inside and group.members_per_node(hardware) > 1 else between
    if hardware.sheet.is_switched:
        return inside
    # each pair has its own link: a group of a part of the node uses only those inside it
    return inside * (group.size - 1) / max(1, hardware.gpus_per_node - 1)


def gather_seconds(size: float, group: Group, hardware: Hardware) -> float:
    """Seconds in which each rank sends all but its own part of *size* bytes.

    That is an all-gather or reduce-scatter whose whole array has *size* bytes, or an all-to-all.
    """
    if group.size <= 1 or not size:
        return 0.0
    call = _CALL_BETWEEN if group.crosses_nodes(hardware) else _CALL_INSIDE
    return call + size * (group.size - 1) / group.size / bandwidth(group, hardware)


def all_reduce_seconds(size: float, group: Group, hardware: Hardware) -> float:
    """Seconds of an all-reduce of *size* bytes: a reduce-scatter and an all-gather."""
    return 2 * gather_seconds(size, group, hardware)


def send_seconds(size: float, line: Group, hardware: Hardware) -> float:
    """Seconds of the slowest send of *size* bytes from a rank of *line* to the next one."""
    pair = Group(2, line.stride)
    if line.crosses_nodes(hardware):
        return size / ((hardware.between or 0.0) * _BETWEEN)
    return size / bandwidth(pair, hardware)


def exposed_seconds(communication: float, computation: float, *, is_hidden: bool = True) -> float:
    """Seconds that *communication* adds to *computation*, which it runs beside if *is_hidden*."""
    if not is_hidden:
        return communication
    return max(0.0, communication - computation) + _CONTENTION * min(communication, computation)


def link_problem(groups: list[Group], hardware: Hardware) -> str | None:
    """Reason why the bandwidth of one of *groups* is unknown; None: all are known."""
    several = [group for group in groups if group.size > 1]
    if hardware.between is None and any(group.crosses_nodes(hardware) for group in several):
        return (
            "its groups span several nodes, and the bandwidth between nodes is unknown; "
            "set between in the machine's file, such as between: 400Gb/s"
        )
    if hardware.inside is None and any(group.members_per_node(hardware) > 1 for group in several):
        return (
            "its groups share a node, and the bandwidth inside nodes depends on which GPUs; "
            "set inside in the machine's file, such as inside: 50GB/s"
        )
    return None
