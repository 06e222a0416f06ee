"""The node of an agent: its facts, and metric samplers outside of its ranks.

Samplers run as the command's own do for ranks on its machine. Rows are kept on the node until the trial has
ended, so that they don't use the network while ranks do.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

import distbench
from distbench.core import registry
from distbench.core.case import Case, PluginChoice
from distbench.ipc.channels import NODE_VARIABLE
from distbench.ipc.launch_spec import LaunchSpec, RankRange
from distbench.ipc.messages import Message, NodeFacts, SampledRows, SamplerFailure
from distbench.ipc.trial_files import TrialInstructions
from distbench.launchers.base import LaunchError
from distbench.metrics.base import Metric, Sampler, sampler_failure
from distbench.system.machine import gpu_error, machine_facts, visible_gpu_count
from distbench.system.network_interfaces import network_interfaces

# rows per message: all rows of a long trial on many GPUs exceed the maximum size of a message
_ROWS_PER_MESSAGE = 250


def node_facts(address: str) -> NodeFacts:
    """Facts about this node for the controller; other nodes reach its ranks at *address*."""
    return NodeFacts(
        node_name(),
        address,
        _code_digest(),
        visible_gpu_count(),
        gpu_error(),
        machine_facts(),
        network_interfaces(),
    )


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


class NodeSamplers:
    """Samplers of a trial on one node."""

    def __init__(self, spec: LaunchSpec) -> None:
        """Start sampling for the ranks that the node starts, with the metrics in the trial's file.

        Raises:
            LaunchError: a metric can't be sampled.
        """
        trial = TrialInstructions.read(spec.instructions)
        case = replace(trial.case, world_size=_local_devices(trial.case, spec.local_ranks))
        self._samplers: dict[str, Sampler] = {}
        try:
            for choice in trial.metrics:
                self._start(choice, case)
        except LaunchError:
            self.stop()
            raise

    def stop(self) -> list[Message]:
        """End the sampling; return the messages with the samples."""
        return [piece for name, sampler in self._samplers.items() for piece in _messages(name, sampler)]

    def _start(self, choice: PluginChoice, case: Case) -> None:
        try:
            metric: Metric = registry.create_plugin("metrics", choice)
            sampler = metric.sampler(case)
        except Exception as error:
            # whatever a plug-in or a driver's library raises is reported to the controller
            raise LaunchError(sampler_failure(choice.name, error)) from error
        if sampler:
            self._samplers[choice.name] = sampler


def _local_devices(case: Case, ranks: RankRange) -> int:
    """Devices of *case* that *ranks* have on this node; one process may have them all."""
    return case.world_size * ranks.count // ranks.world_size


def _messages(name: str, sampler: Sampler) -> list[Message]:
    try:
        rows = sampler.stop()
    except Exception as error:
        return [SamplerFailure(name, sampler_failure(name, error))]
    return [
        SampledRows(name, tuple(rows[i : i + _ROWS_PER_MESSAGE]))
        for i in range(0, len(rows), _ROWS_PER_MESSAGE)
    ]
