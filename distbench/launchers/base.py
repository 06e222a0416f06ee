"""The seam of launchers: start the ranks of a trial, report which have ended, stop all of them.

Results come back as files in the trial's folder (``distbench.ipc.trial_files``), never through
the launcher.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from distbench.core.case import Device, TimeLimits
from distbench.core.machine import Machine
from distbench.system.cgroup_memory import CgroupMemory
from distbench.system.machine import detect_machine
from distbench.system.processes import RankRange


class LaunchError(Exception):
    """The processes of a trial can't be started or kept; a result of the case, not the end of the run."""

    def __init__(self, message: str, memory: CgroupMemory | None = None) -> None:
        super().__init__(message)
        self.memory = memory
        """Of a SIGKILL: what the kernel counts of memory, with its kills since the launch."""


class NodesUnavailableError(LaunchError):
    """The nodes of a run did not come together: no other launch of it can succeed before they do."""


class NodeLostError(LaunchError):
    """A node was lost in the middle of a launch; that is no fault of what ran there, as far as is known."""


class LaunchUnsupportedError(LaunchError):
    """A trial can't be made as its nodes are, whatever is tried again; others can."""


@dataclass(frozen=True)
class PythonTarget:
    """Python interpreter and working directory of the processes of a run."""

    python: str = sys.executable
    """Path of the interpreter; it finds distbench and what the strategies import."""
    working_directory: str | None = None
    """Working directory, from which a user's model is imported; None: that of the command."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that override those of the strategies and the inherited ones."""


CURRENT_PYTHON = PythonTarget()
"""The Python and the folder of the command itself."""


@dataclass(frozen=True)
class ControllerCommand:
    """A command of distbench for an engine to start on nodes that it chooses; there it runs a suite."""

    arguments: Sequence[str]
    """What follows ``distbench``."""
    nodes: int
    name: str
    """Of the suite, to be seen in the engine's list of jobs."""
    target: PythonTarget = CURRENT_PYTHON
    log_folder: Path | None = None
    """Folder for a file of its standard output and one of its standard error; None: what the engine does."""
    suite_file: str = ""
    """Name of the suite's file, for an engine whose nodes don't have it."""
    suite_text: str = ""
    """The suite in it, as the user wrote it."""
    overrides: Sequence[str] = ()
    """Options of ``distbench run`` that override it."""


@dataclass(frozen=True)
class Submission:
    """A controller in the words of an engine, as it is handed over, to the byte."""

    command: Sequence[str]
    """Hands it over: it reads *text* from its standard input."""
    text: str
    """Batch script, manifests, or whatever the engine takes."""


@dataclass(frozen=True)
class QueuedJob:
    """A controller that was handed over, as its engine sees it now."""

    state: Literal["waiting", "running", "ended"]
    state_text: str
    """The same in the engine's words, with its reason."""
    exit_code: int | None = None
    """Exit code of a controller that has ended, 128 and the signal if one ended it; None: unknown."""


class JobQueue(ABC):
    """The jobs of an engine, among them controllers that were handed over."""

    @abstractmethod
    def parse_job_name(self, printed: str) -> str:
        """Name of the job in what the command of a submission has *printed*.

        Raises:
            ValueError: there is none.
        """

    @abstractmethod
    def query(self, name: str) -> QueuedJob | None:
        """Job *name* as it is now; None if that can't be told at the moment."""

    @abstractmethod
    def cancel_command(self, name: str) -> list[str]:
        """Command that ends job *name*."""

    @abstractmethod
    def log_files(self, name: str, folder: Path) -> tuple[Path, Path]:
        """Files of its standard output and error in *folder*, the ``logs`` of its controller."""


WorkerCommand = Literal["rank", "prepare", "examine"]
"""A command of ``python -m distbench.worker`` that a process of a launch runs."""


@dataclass(frozen=True)
class LaunchSpec:
    """One trial, or one preparation, as a launcher sees it."""

    entry: WorkerCommand
    """What each process runs."""
    instructions: Path
    """JSON file with its instructions; logs and results go to its folder."""
    processes: int
    nodes: int = 1
    """Number of nodes that they are spread over."""
    device: Device = "cpu"
    """What they compute on."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for every process, besides the inherited ones."""
    imports: Sequence[str] = ()
    """Modules that a warm parent may import before it forks the ranks."""
    leftovers: Sequence[str] = ()
    """Glob patterns of files to remove afterwards; ``{port}`` stands for ``MASTER_PORT``."""
    target: PythonTarget = CURRENT_PYTHON
    ranks: RankRange | None = None
    """Those of its processes that one node starts; None: this one starts all of them."""
    run_folder: Path | None = None
    """Folder of the run: what processes read and write is in it; None: the folder of *file* is all."""
    input_files: Sequence[Path] = ()
    """Files in it, besides *file*, that they read where there are such."""
    output_files: Sequence[Path] = ()
    """Files in it, outside the folder of *file*, that they leave for later launches."""
    once_per_cache: bool = False
    """Whether each node that has a cache of its own starts it, with one process."""
    is_sampled: bool = False
    """Whether metrics sample while it runs: nodes where the command is not sample for themselves."""
    needs_shared_files: bool = False
    """Whether processes read files that others of the same launch write."""
    start_s: float = TimeLimits().start
    """Seconds that its ranks have to join each other: what they are forked from has as many to import."""
    is_cancelled: Callable[[], bool] = lambda: False
    """Whether nobody waits for it any more; asked several times a second while the launch takes its time."""


@dataclass(frozen=True)
class RankExit:
    """End of a rank."""

    rank: int
    code: int
    """Exit code; negative: the signal that ended it."""
    at: float
    """``clock.now()`` when the end was seen."""
    memory: CgroupMemory | None = None
    """Of a SIGKILL: what the kernel counts of memory, with its kills since the launch; None if unknown."""


class RunningLaunch(ABC):
    """A launched trial."""

    port: int = 0
    """Port at which its ranks meet; 0 if the launcher does not say."""
    ranks_by_node: Mapping[str, list[int]] = MappingProxyType({})
    """Node -> its ranks; empty: all are on this machine."""

    @abstractmethod
    def wait(self, seconds: float) -> list[RankExit]:
        """Ranks that have ended since the last call, waiting up to *seconds* for the first.

        Raises:
            LaunchError: what the ranks were started from has ended or hangs, and no rank is left.
        """

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send signal *number* to every rank that is alive (SIGUSR1: dump stacks to the log)."""

    def process_states(self) -> Mapping[int, str]:
        """State of each rank's process, a letter of ``/proc/PID/stat``, as far as it is known."""
        return {}

    def silent_node(self) -> str | None:
        """Which node has given no sign of life for some time, if one has; it may be lost before long."""
        return None

    def fetch_logs(self) -> None:  # noqa: B027  # where ranks write into the trial's folder, all of it is there
        """Have what ranks have printed so far, and why they failed, in the trial's folder."""

    @abstractmethod
    def stop(self) -> None:
        """End every process of the trial, whatever it takes, and wait until none is left."""

    def sampler_tables(self) -> Mapping[str, list[dict[str, Any]]]:
        """Rows of the samplers on its nodes, by metric, each with its ``node``; known once stopped."""
        return {}

    def failed_samplers(self) -> Mapping[str, str]:
        """Metrics whose samplers failed on a node, each with the reason; known once stopped."""
        return {}


class LaunchSession(ABC):
    """Where the trials of one run are started, one after another."""

    is_local: ClassVar[bool] = True
    """Whether ranks run on this machine, so that metrics may sample its processes and devices; elsewhere the
    nodes do, if they can."""

    @abstractmethod
    def launch(self, launch: LaunchSpec) -> RunningLaunch:
        """Start the processes of *launch*.

        Raises:
            LaunchError: they can't be started, or nobody waits for them any more.
        """

    @property
    def machine(self) -> Mapping[str, Any] | None:
        """Facts of the machine that ranks run on, by ``machine_facts``; None: this one, or unknown.

        Another machine is known once something was launched there.
        """
        return None

    def restart_fork_servers(self) -> None:  # noqa: B027  # most sites keep nothing of the sort
        """End what trials are forked from, so that the next one starts from a new process."""

    @abstractmethod
    def close(self) -> None:
        """End what is kept between trials; afterwards no process of the run is left."""


class Launcher(ABC):
    """A way to start processes. A frozen dataclass: its fields are its options in YAML."""

    supports_environments: ClassVar[bool] = False
    """Whether processes run by the Python that ``LaunchSpec.target`` names, and not by that of their
    nodes."""

    @classmethod
    def is_active(cls) -> bool:
        """Whether this process is inside what it launches on, so that ``launcher: auto`` means this one."""
        return False

    @classmethod
    def seconds_left(cls) -> float | None:
        """Seconds until the engine around this process ends it; None: never, or nobody knows."""
        return None

    def machine(self, device: str) -> Machine:
        """Machine that ranks run on, for a suite whose ``device`` is *device* (auto, cpu or cuda).

        A launcher that starts ranks elsewhere describes that machine; this one may have no GPU.
        """
        return detect_machine(device)

    def node_count(self, processes: int, device: Device) -> int:
        """Number of nodes that *processes* ranks which compute on *device* are spread over."""
        return 1

    def option_problem(self) -> tuple[str, str] | None:
        """The option (empty: none of them) that makes every launch impossible, and why; None if nothing does.

        It is asked before anything else is.
        """
        return None

    def start_hint(self) -> str | None:
        """What to do where this process can plan a run, but not start it; None if it can."""
        return None

    def default_node_count(self) -> int | None:
        """Number of nodes that a submission asks for; None: the user has to say it."""
        return None

    def problem(self, processes: int, machine: Machine) -> str | None:
        """Why *processes* ranks can't be started; None if they can."""
        return None

    def environment(self) -> Mapping[str, str]:
        """Variables for every process of every launch; those of the strategies go before them."""
        return {}

    @abstractmethod
    def commands(self, launch: LaunchSpec) -> list[list[str]]:
        """Commands that ``launch`` would run, for a dry run: one argv per process."""

    def job_queue(self) -> JobQueue | None:
        """Where controllers that were handed over can be followed from here; None: nowhere."""
        return None

    def submission(self, controller: ControllerCommand) -> Submission | None:
        """How *controller* is handed to the engine; None: it takes none. Nothing is started.

        Raises:
            UsageError: an option can't be said in the engine's words.
        """
        return None

    @abstractmethod
    def open_session(self, run_id: str) -> LaunchSession:
        """Site for the trials of run *run_id*; each of its processes carries that ID."""


PLUGIN_BASE = Launcher
HELPERS = (
    *("agents", "cluster", "cluster_build", "fork_server_client", "nodes", "shared_files"),
    *("trials", "visible"),
)
"""Modules of this package that are shared code, not plug-ins."""
