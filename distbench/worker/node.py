"""Facts about an agent's node."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

import psutil

import distbench
from distbench.ipc.channels import NODE_VARIABLE
from distbench.ipc.messages import NodeFacts
from distbench.system.machine import machine_facts, visible_gpu_count


def node_facts(address: str) -> NodeFacts:
    """Facts about this node for the controller; other nodes reach its ranks at *address*."""
    return NodeFacts(node_name(), address, _code_digest(), visible_gpu_count(), machine_facts())


def _code_digest() -> str:
    """Digest of distbench's code on this node."""
    whole = hashlib.sha256()
    for file in sorted(Path(distbench.__file__).parent.rglob("*.py")):
        whole.update(file.read_bytes())
    return whole.hexdigest()[:12]


def node_name() -> str:
    """Name of this node: from its launcher's environment, otherwise its host name."""
    return os.environ.get(NODE_VARIABLE) or socket.gethostname().partition(".")[0]


def interface_with_address(address: str) -> str:
    """Name of the network interface of this host with *address*; empty if none has it."""
    interfaces = psutil.net_if_addrs()
    return next(
        (name for name, has in interfaces.items() if any(each.address == address for each in has)), ""
    )


def wait_for_file(file: str, content: str) -> bool:
    """Wait up to 2 seconds for *file* with *content*: true on a shared file system."""
    end = time.monotonic() + 2
    while time.monotonic() < end:
        with suppress(OSError):
            if Path(file).read_text() == content:
                return True
        # network file systems show a new file when its folder is listed again
        with suppress(OSError):
            list(Path(file).parent.iterdir())
        time.sleep(0.05)
    return False
