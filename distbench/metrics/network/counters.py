"""Counters of network interfaces from the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

_SYS = Path("/sys/class")
# Documentation/ABI/stable/sysfs-class-infiniband: octets divided by four
_IB_OCTETS = 4


@dataclass(frozen=True)
class InterfaceCounter:
    """Bytes that have passed through one interface."""

    kind: str
    """``socket``: a network interface; ``infiniband``: a port of an InfiniBand or RoCE adapter."""
    sent: int
    received: int


def read_counters(interface: str, sys: Path = _SYS) -> dict[str, InterfaceCounter]:
    """Counters of the network *interface* and of every InfiniBand port, by name (``eth0``, ``mlx5_0/1``).

    Raises:
        LookupError: there is no such interface.
    """
    # from /proc/net/dev, which shows the network of this process; /sys/class/net shows that of its mounter
    seen = psutil.net_io_counters(pernic=True, nowrap=False)[interface]
    return {interface: InterfaceCounter("socket", seen.bytes_sent, seen.bytes_recv), **_infiniband_ports(sys)}


def _infiniband_ports(sys: Path) -> dict[str, InterfaceCounter]:
    found = {}
    for port in sorted((sys / "infiniband").glob("*/ports/*")):
        try:
            sent, received = (
                int((port / "counters" / f"port_{way}_data").read_text()) * _IB_OCTETS
                for way in ("xmit", "rcv")
            )
        except (OSError, ValueError):
            # a port that is down has no readable counter ("Invalid argument"), and nothing passes through it
            continue
        found[f"{port.parts[-3]}/{port.name}"] = InterfaceCounter("infiniband", sent, received)
    return found


def counter_differences(
    before: Mapping[str, InterfaceCounter], after: Mapping[str, InterfaceCounter]
) -> dict[str, InterfaceCounter]:
    """Bytes that passed through each interface between two readings."""
    return {
        name: InterfaceCounter(end.kind, end.sent - before[name].sent, end.received - before[name].received)
        for name, end in after.items()
        if name in before
    }
