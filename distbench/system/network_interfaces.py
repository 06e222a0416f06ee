"""Network interfaces of a host, and those that the variables of gloo and NCCL select.

NCCL: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html (NCCL_SOCKET_IFNAME).
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from distbench.core.case import Device

LOOPBACK = "lo"
GLOO_VARIABLE, NCCL_VARIABLE = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
INTERFACE_VARIABLES = (GLOO_VARIABLE, NCCL_VARIABLE)
"""Variables that select the interface of gloo and NCCL; gloo would use the address of the host's name."""
_IGNORED_LENGTH = 1
"""Maximum length of a value that both treat as none."""


class InterfaceError(Exception):
    """Sockets of ranks can't be opened on this host; the message says why, and what to do."""


@dataclass(frozen=True)
class NetworkInterface:
    """A network interface."""

    name: str
    addresses: tuple[str, ...]
    """Its IP addresses; the first is that of sockets."""
    is_up: bool


def network_interfaces() -> tuple[NetworkInterface, ...]:
    """The network interfaces of this host."""
    states = psutil.net_if_stats()
    return tuple(
        NetworkInterface(
            name,
            tuple(each.address for each in found if each.family in (socket.AF_INET, socket.AF_INET6)),
            name in states and states[name].isup,
        )
        for name, found in psutil.net_if_addrs().items()
    )


def selected_interfaces(
    interfaces: Sequence[NetworkInterface], variables: Mapping[str, str], device: Device
) -> dict[str, list[NetworkInterface]]:
    """Variable -> those of *interfaces* that its value in *variables* selects, for ranks on *device*.

    Raises:
        InterfaceError: it selects one on which no socket can be opened, or ranks of the host can't reach
            each other.
    """
    # packets to any address of the host itself go through it
    if any(each.name == LOOPBACK and not each.is_up for each in interfaces):
        raise InterfaceError(
            f"the loopback interface {LOOPBACK} is down, by which processes of a host reach each other; run "
            f"ip link set {LOOPBACK} up"
        )
    # gloo is there next to NCCL
    select = {GLOO_VARIABLE: _gloo_interfaces, NCCL_VARIABLE: _nccl_interfaces}
    used = INTERFACE_VARIABLES if device == "cuda" else (GLOO_VARIABLE,)
    return {
        name: select[name](variables[name], interfaces)
        for name in used
        if len(variables.get(name, "")) > _IGNORED_LENGTH
    }


def _gloo_interfaces(value: str, interfaces: Sequence[NetworkInterface]) -> list[NetworkInterface]:
    """Interfaces that *value* selects for gloo: it lists whole names."""
    if value[0] in "^=":
        raise _error(GLOO_VARIABLE, value, "gloo takes names only, ^ and = are for NCCL", interfaces)
    known = {each.name: each for each in interfaces}
    names = value.removesuffix(",").split(",")
    for name in names:
        if name != name.strip():
            raise _error(GLOO_VARIABLE, value, "gloo takes names without spaces", interfaces)
        if name not in known:
            raise _error(
                GLOO_VARIABLE, value, f"there is no interface {name or 'without a name'}", interfaces
            )
        if not known[name].addresses:
            raise _error(GLOO_VARIABLE, value, f"{name} has no IP address", interfaces)
    return [known[name] for name in names]


def _nccl_interfaces(value: str, interfaces: Sequence[NetworkInterface]) -> list[NetworkInterface]:
    """Interfaces that *value* selects for NCCL: it lists beginnings of names, or whole ones after ``=``."""
    is_excluded = value.startswith("^")
    is_whole = value.removeprefix("^").startswith("=")
    # NCCL also takes a port after a colon
    names = [part.partition(":")[0] for part in value.removeprefix("^").removeprefix("=").split(",")]
    names = [name for name in names if name]

    def is_named(own: str) -> bool:
        return own in names if is_whole else own.startswith(tuple(names))

    found = [each for each in interfaces if each.addresses and is_named(each.name) != is_excluded]
    if not found:
        raise _error(NCCL_VARIABLE, value, "no interface with an IP address matches", interfaces)
    return found


def _error(variable: str, value: str, problem: str, interfaces: Sequence[NetworkInterface]) -> InterfaceError:
    usable = ", ".join(sorted(each.name for each in interfaces if each.addresses))
    return InterfaceError(
        f"{variable} = {value}: {problem}; unset it, or name interfaces of this host, separated by commas: "
        f"{usable or 'none has an address'}"
    )


@dataclass(frozen=True)
class NodeSockets:
    """Interfaces for the sockets of the ranks on one node."""

    node: str
    address: str
    """Address at which other nodes reach it; the same for two agents on one host."""
    selected: Mapping[str, Sequence[NetworkInterface]]
    """Variable -> the interfaces that it selects there."""

    def addresses(self, variable: str) -> list[tuple[str, str]]:
        """Addresses of the sockets that *variable* determines, each with its interface."""
        own = self.selected.get(variable, [])
        # NCCL meets on the first of several, gloo uses all
        return [(each.addresses[0], each.name) for each in (own[:1] if variable == NCCL_VARIABLE else own)]


def shared_address_text(nodes: Sequence[NodeSockets]) -> str:
    """Message about a socket address that two of *nodes* have, so that neither reaches the other."""
    for variable in INTERFACE_VARIABLES:
        owners: dict[str, tuple[NodeSockets, str]] = {}
        for node in nodes:
            for address, interface in node.addresses(variable):
                other, its_interface = owners.setdefault(address, (node, interface))
                if other.address != node.address:
                    return (
                        f"{variable} selects {its_interface} on {other.node} and {interface} on {node.node}, "
                        f"which have the same address {address}; unset it, or name the interface by which "
                        f"the nodes reach each other, with {other.address} on {other.node} and "
                        f"{node.address} on {node.node}"
                    )
    return ""
