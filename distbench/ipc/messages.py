"""Messages between the processes of a run, and their encoding.

The controller of a run sends requests to the agents on its nodes, and each of them, like the command itself,
to the fork servers on its own node; events come back. A message is one line of JSON with the name of its type
and its fields; an unknown type, or a field of another type, is an error.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

from distbench.core.errors import RecordError
from distbench.core.serialization import decode
from distbench.ipc.build_files import BuildEvent
from distbench.ipc.launch_spec import LaunchSpec
from distbench.ipc.trial_files import ProgressMark
from distbench.system.cgroup_memory import CgroupMemory
from distbench.system.network_interfaces import NetworkInterface


class MessageError(Exception):
    """Received data that is no message."""


@dataclass(frozen=True)
class Message:
    """A request or an event."""


# requests to agents and fork servers, and the answers


@dataclass(frozen=True)
class LaunchStarted(Message):
    """The ranks of the launch have started."""

    port: int
    """Port of their rendezvous."""


@dataclass(frozen=True)
class SignalRanks(Message):
    """Send signal *number* to the ranks."""

    number: int


@dataclass(frozen=True)
class QueryStates(Message):
    """Query the states of the ranks' processes; the answer is ``RankStates``."""


@dataclass(frozen=True)
class RankStates(Message):
    """Each rank with the state of its process, a letter of ``/proc/PID/stat``."""

    states: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class StopLaunch(Message):
    """End all processes of the launch; an agent answers with ``LaunchStopped``."""


@dataclass(frozen=True)
class RankExit(Message):
    """End of a rank."""

    rank: int
    code: int
    """Exit code; negative: the signal that ended it."""
    at: float
    """``clock.now()`` when the end was seen."""
    memory: CgroupMemory | None = None
    """Of a SIGKILL: memory counters of the kernel, with its kills since the launch; None if unknown."""
    launch: int = 0
    """Of an agent: number of the launch in ``PrepareLaunch``."""


# fork servers only


@dataclass(frozen=True)
class StartLaunch(Message):
    """Start the ranks ``spec.ranks``; the answer is ``LaunchStarted``."""

    spec: LaunchSpec


@dataclass(frozen=True)
class ForkServerReady(Message):
    """The fork server has imported its modules."""

    initialized_cuda: bool
    """True if an import has initialised CUDA, so that its children can't use it."""


@dataclass(frozen=True)
class HeartbeatQuery(Message):
    """Request for a heartbeat: ``Heartbeat``."""


@dataclass(frozen=True)
class Heartbeat(Message):
    """Heartbeat of a fork server."""


# agents only


@dataclass(frozen=True)
class PrepareLaunch(Message):
    """Start the fork server for the ranks ``spec.ranks``.

    The answer is ``LaunchPrepared`` or ``LaunchFailed``.
    """

    spec: LaunchSpec
    number: int = 0
    """Number of the launch in the run."""
    in_mirror: bool = False
    """True if the agent launches it in its copy of the run's folder."""
    file_label: str = ""
    """Part of the names of files that come back, if other nodes launch the same; empty: none."""


@dataclass(frozen=True)
class LaunchPrepared(Message):
    """The fork server has imported; the ranks can start at once."""


@dataclass(frozen=True)
class StartRanks(Message):
    """Start the ranks of the prepared launch; the answer is ``LaunchStarted`` or ``LaunchFailed``."""

    master_port: int
    """Port of the rendezvous; 0 for the node of rank 0: any that is free."""


@dataclass(frozen=True)
class NodeFacts(Message):
    """The first message of an agent; the answer is ``Welcome``."""

    name: str
    address: str
    """Address at which other nodes reach its ranks."""
    distbench: str = ""
    """Digest of distbench's code on the node."""
    visible_gpus: int = 0
    gpu_error: str = ""
    """Error of the driver that hides its GPUs; empty: there is none."""
    machine: dict[str, Any] = field(default_factory=dict)
    """Facts of the node by ``machine_facts``."""
    interfaces: tuple[NetworkInterface, ...] = ()
    """Its network interfaces."""

    @property
    def facts(self) -> dict[str, Any]:
        """Facts in which nodes are compared."""
        return {"distbench": self.distbench, **self.machine}


@dataclass(frozen=True)
class Welcome(Message):
    """The first message of the controller."""

    now: float
    """Its ``clock.now()``."""


@dataclass(frozen=True)
class FindFile(Message):
    """Look for *file* with *content*; the answer is ``FileFound``."""

    file: str
    content: str


@dataclass(frozen=True)
class FileFound(Message):
    """Answer: *found* is true if the node sees the file."""

    found: bool


@dataclass(frozen=True)
class LaunchFailed(Message):
    """The launch, or what it needs, has failed on the node."""

    reason: str


@dataclass(frozen=True)
class LaunchStopped(Message):
    """No process of the launch is left, and its samples have been sent."""


@dataclass(frozen=True)
class RestartForkServers(Message):
    """Stop the fork servers; the answer is ``ForkServersStopped``."""


@dataclass(frozen=True)
class ForkServersStopped(Message):
    """The next launch starts from a new process."""


@dataclass(frozen=True)
class EndRun(Message):
    """No agent is needed any more."""


@dataclass(frozen=True)
class SampledRows(Message):
    """Rows that a sampler has measured on the node."""

    metric: str
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class SamplerFailure(Message):
    """A sampler has failed on the node."""

    metric: str
    reason: str


# processes that another launcher has started, the first on each node, and the controller among them


@dataclass(frozen=True)
class JoinRun(Message):
    """The first message of such a process: its place by its launcher's variables."""

    rank: int
    world_size: int
    local_world_size: int


@dataclass(frozen=True)
class JoinRefused(Message):
    """The controller can't use the process."""

    reason: str


@dataclass(frozen=True)
class StartAgent(Message):
    """Start an agent with *variables*; ``EndRun`` ends the run."""

    variables: dict[str, str]


# agents on nodes that do not share the run's folder


@dataclass(frozen=True)
class OfferFiles(Message):
    """Offer files of the run's folder *root*; the answer is ``MissingFiles``, or ``LaunchFailed``."""

    files: tuple[tuple[str, str], ...]
    """Name in *root*, and SHA-256 digest, of each."""
    root: str


@dataclass(frozen=True)
class MissingFiles(Message):
    """Those of the offered files that the node lacks."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class FileChunk(Message):
    """Part of a file in the run's folder, in either direction."""

    name: str
    offset: int
    digest: str = ""
    """SHA-256 of the whole file, with its last chunk."""
    data: bytes = b""


@dataclass(frozen=True)
class SendLogs(Message):
    """Send the logs and results of running ranks, then ``LogsSent``."""


@dataclass(frozen=True)
class LogsSent(Message):
    """All files that ``SendLogs`` requested have been sent."""


@dataclass(frozen=True)
class DropMirror(Message):
    """Remove the copy of the run's folder."""


@dataclass(frozen=True)
class RankProgress(Message):
    """New progress marks of ranks."""

    marks: tuple[tuple[int, ProgressMark], ...]


@dataclass(frozen=True)
class BuildEvents(Message):
    """New events of a preparation."""

    events: tuple[BuildEvent, ...]


_TYPES: dict[str, type[Message]] = {kind.__name__: kind for kind in Message.__subclasses__()}


def encode_message(message: Message) -> bytes:
    """*message* as one line of JSON; after a line break the data of a ``FileChunk``."""
    fields = asdict(message)
    data = fields.pop("data", b"")
    line = json.dumps({"type": type(message).__name__, **fields}, default=os.fspath).encode()
    return line + b"\n" + data if data else line


def decode_message(encoded: bytes) -> Message:
    """The message that ``encode_message`` has *encoded*.

    Raises:
        MessageError: it is none.
    """
    line, _, data = encoded.partition(b"\n")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"invalid message: not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise MessageError("invalid message: not a mapping")
    name = str(fields.get("type"))
    if (kind := _TYPES.get(name)) is None:
        raise MessageError(f"a message of the unknown type {name:.60}")
    try:
        return decode(kind, {**fields, "data": data}, f"a message {name}")
    except RecordError as error:
        raise MessageError(str(error)) from error
