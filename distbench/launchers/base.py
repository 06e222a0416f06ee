"""Base classes of launchers: sessions, running launches, errors.

Results come back as files in the trial's folder (``distbench.ipc.trial_files``), never through
the launcher.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from distbench.core.case import Device
from distbench.core.machine import Machine
from distbench.ipc.launch_spec import CURRENT_PYTHON, LaunchSpec, PythonTarget
from distbench.ipc.messages import RankExit
from distbench.system.cgroup_memory import CgroupMemory
from distbench.system.machine import detect_machine


class LaunchError(Exception):
    """The processes of a trial can't be started or kept: the outcome of the case, not the end of the run."""

    def __init__(self, message: str, memory: CgroupMemory | None = None) -> None:
        super().__init__(message)
        self.memory = memory
        """Of a SIGKILL: memory counters of the kernel, with its kills since the launch."""


class NodesUnavailableError(LaunchError):
    """The nodes of a run are not available; until they are, no other launch of it can succeed."""


class NodeLostError(LaunchError):
    """A node was lost during a launch, as far as is known by no fault of the processes there."""


class LaunchUnsupportedError(LaunchError):
    """This launch is not possible on these nodes, however often it is repeated; others are."""


@dataclass(frozen=True)
class ControllerCommand:
    """A distbench command that an engine starts on nodes of its choice, to run a suite there."""

    arguments: Sequence[str]
    """Arguments of ``distbench``."""
    nodes: int
    """Number of nodes; 0: all that the engine has."""
    name: str
    """Name of the suite, to be seen in the engine's list of jobs."""
    target: PythonTarget = CURRENT_PYTHON
    log_folder: Path | None = None
    """Folder for files of its standard output and standard error; None: the engine's default."""
    folder: Path | None = None
    """Folder that the arguments name, for an engine whose nodes don't see it; None: they name a suite."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts of the files that the command begins with, by name in the folder; of a suite: its name."""
    overrides: Sequence[str] = ()
    """Options of ``distbench run`` that override the suite."""


@dataclass(frozen=True)
class Submission:
    """The command and input that submit a controller, exactly as the engine gets them."""

    command: Sequence[str]
    """Submits it; reads *text* from its standard input."""
    text: str
    """Batch script, manifests, or other input of the engine."""
    secret: str = ""
    """Word in *text* that no copy of it may have; empty: none."""
    engine: str = ""
    """Name of the engine in messages; empty: the program of *command*."""


@dataclass(frozen=True)
class QueuedJob:
    """A submitted controller, in the engine's current view."""

    state: Literal["waiting", "running", "ended"]
    state_text: str
    """The state in the engine's words, with its reason."""
    exit_code: int | None = None
    """Exit code of a controller that has ended, 128 plus the signal if one ended it; None: unknown."""
    lost: str = ""
    """Nodes that the engine has taken from a job that goes on, with the reasons."""


class JobQueue(ABC):
    """The jobs of an engine, among them submitted controllers."""

    @abstractmethod
    def parse_job_name(self, printed: str) -> str:
        """Name of the job in the output *printed* by the command of a submission.

        Raises:
            ValueError: there is none.
        """

    @abstractmethod
    def query(self, name: str) -> QueuedJob | None:
        """Current state of job *name*; None if it is temporarily unknown."""

    @abstractmethod
    def cancel_command(self, name: str) -> list[str]:
        """Command that ends job *name*."""

    @abstractmethod
    def log_files(self, name: str, folder: Path) -> tuple[Path, Path]:
        """Files of its standard output and error in *folder*, the ``log_folder`` of its controller."""

    def fetch(self, name: str, folder: Path, *, has_ended: bool) -> None:  # noqa: B027  # nodes see the folder
        """Fetch new files of *folder*, which job *name* has where it runs.

        Args:
            has_ended: Fetch all of them, and free what the engine keeps for that.

        Raises:
            InfrastructureError: the job has ended, and its files can't be fetched.
        """


CancelCheck = Callable[[], bool]
"""Returns True to cancel a launch; polled several times a second while it starts."""


def never_cancelled() -> bool:
    """Default of a launch: it is not cancelled."""
    return False


class RunningLaunch(ABC):
    """A launched trial."""

    port: int = 0
    """Port of the rendezvous of its ranks; 0 if the launcher does not report it."""
    ranks_by_node: Mapping[str, list[int]] = MappingProxyType({})
    """Node -> its ranks; empty: all are on this machine."""

    @abstractmethod
    def wait(self, seconds: float) -> list[RankExit]:
        """Wait up to *seconds* for the first exit; return the ranks that have ended since the last call.

        Raises:
            LaunchError: the parent of the ranks has ended or hangs, and no rank is left.
        """

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send signal *number* to every rank that is alive (SIGUSR1: dump stacks to the log)."""

    def process_states(self) -> Mapping[int, str]:
        """State of each rank's process, a letter of ``/proc/PID/stat``, as far as it is known."""
        return {}

    def silent_node(self) -> str | None:
        """Message about a node without recent heartbeats, if any; it may be lost before long."""
        return None

    def fetch_logs(self) -> None:  # noqa: B027  # where ranks write into the trial's folder, all of it is there
        """Fetch logs and errors of ranks into the trial's folder."""

    @abstractmethod
    def stop(self) -> None:
        """End every process of the trial by all means, and wait until none is left."""

    def sampler_tables(self) -> Mapping[str, list[dict[str, Any]]]:
        """Rows of the samplers on its nodes, by metric, each with its ``node``; known once stopped."""
        return {}

    def failed_samplers(self) -> Mapping[str, str]:
        """Metrics whose samplers failed on a node, each with the reason; known once stopped."""
        return {}


class LaunchSession(ABC):
    """Session of a run, in which its trials are launched one after another."""

    is_local: ClassVar[bool] = True
    """True if ranks run on this machine, so that metrics may sample its processes and devices; elsewhere the
    nodes do, if they can.
    """

    def prepare(self, spec: LaunchSpec, is_cancelled: CancelCheck) -> None:  # noqa: B027  # may be nothing
        """Do whatever takes long before the processes of *spec* can start.

        Raises:
            LaunchError: it failed, or was cancelled.
        """

    @abstractmethod
    def launch(self, spec: LaunchSpec, is_cancelled: CancelCheck = never_cancelled) -> RunningLaunch:
        """Start the processes of *spec*.

        Raises:
            LaunchError: they can't be started, or the launch was cancelled.
        """

    @property
    def machine(self) -> Mapping[str, Any] | None:
        """Facts of the machine that ranks run on, by ``machine_facts``; None: this one, or unknown.

        Another machine is known once something was launched there.
        """
        return None

    def restart_fork_servers(self) -> None:  # noqa: B027  # most sites keep nothing of the sort
        """Stop the fork servers, so that the next trial starts from a new process."""

    @abstractmethod
    def close(self) -> None:
        """End the processes kept between trials; afterwards no process of the run is left."""


class Launcher(ABC):
    """A way to start processes. A frozen dataclass: its fields are its options in YAML."""

    supports_environments: ClassVar[bool] = False
    """True if processes run by the Python that ``LaunchSpec.target`` names, rather than by that of their
    nodes.
    """
    joins_started_ranks: ClassVar[bool] = False
    """True if processes that another launcher has started, one for each rank, join one run."""

    @classmethod
    def is_active(cls) -> bool:
        """True inside an allocation of this launcher, for ``launcher: auto``."""
        return False

    @classmethod
    def seconds_left(cls) -> float | None:
        """Seconds until the engine around this process ends it; None: never, or unknown."""
        return None

    def machine(self, device: str) -> Machine:
        """Machine that ranks run on, for a suite whose ``device`` is *device* (auto, cpu or cuda).

        A launcher that starts ranks elsewhere describes that machine; this one may have no GPU.
        """
        return detect_machine(device)

    def node_count(self, processes: int, device: Device) -> int:
        """Number of nodes for *processes* ranks which compute on *device*."""
        return 1

    def option_problem(self) -> tuple[str, str] | None:
        """Return (option, reason) if the options make every launch impossible; None if they do not.

        The option is empty if no single one is the reason. This is called before anything else.
        """
        return None

    def start_hint(self) -> str | None:
        """Advice where this process can plan a run, but not start it; None if it can."""
        return None

    def default_node_count(self) -> int | None:
        """Default node count of a submission; 0: all that the engine has; None: the user has to give it."""
        return None

    def problem(self, processes: int, machine: Machine) -> str | None:
        """Reason why *processes* ranks can't be started; None if they can."""
        return None

    def environment(self) -> Mapping[str, str]:
        """Variables for every process of every launch; those of the strategies take precedence."""
        return {}

    @abstractmethod
    def commands(self, spec: LaunchSpec) -> list[list[str]]:
        """Commands that ``launch`` would run, for a dry run: one argv per process."""

    def job_queue(self) -> JobQueue | None:
        """Queue by which submitted controllers can be followed from here; None: there is none."""
        return None

    def submission(self, controller: ControllerCommand) -> Submission | None:
        """Command and input that submit *controller*; None: not possible. Nothing is started.

        Raises:
            UsageError: an option can't be expressed for the engine.
        """
        return None

    @contextmanager
    def join(self, out: Path) -> Iterator[int | None]:
        """Join the processes that were started with this one, for runs in the folder *out*.

        Yields None in the process that starts ranks, and meanwhile controls the others. Those serve it
        before, and get their exit code.

        Raises:
            InfrastructureError: they can't find or keep each other.
        """
        yield None

    @abstractmethod
    def open_session(self, run_id: str) -> LaunchSession:
        """Open a session for the trials of run *run_id*; each of its processes carries that ID."""


PLUGIN_BASE = Launcher
HELPERS = ("agents", "cluster", "cluster_launch", "fork_server_client", "nodes")
"""Modules of this package that are shared code, not plug-ins."""
