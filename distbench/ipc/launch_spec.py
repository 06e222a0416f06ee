"""Launch request as plain data, the same from the run over agents and fork servers to a rank."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from distbench.core.case import Device
from distbench.core.measurement import TimeLimits


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
class RankRange:
    """Ranks of a launch that one node starts, and the address of their rendezvous."""

    world_size: int
    """Ranks of the launch, on all of its nodes."""
    count: int
    """Ranks on this node."""
    first: int = 0
    """Number of the first of them; the others follow it."""
    node_rank: int = 0
    node_count: int = 1
    master_address: str = "127.0.0.1"
    """Address of the node of rank 0, at which every node reaches it."""
    master_port: int = 0
    """Port of the rendezvous there; 0 on the node of rank 0: any that is free, which it then reports."""

    @property
    def has_rank_0(self) -> bool:
        """True if this node opens the rendezvous."""
        return self.first == 0

    @property
    def ranks(self) -> range:
        """Numbers of the ranks on this node."""
        return range(self.first, self.first + self.count)

    def environment(self, local_rank: int, port: int) -> dict[str, str]:
        """Environment variables that place a rank, with torchrun's names."""
        return {
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(self.world_size),
            "RANK": str(self.first + local_rank),
            "LOCAL_WORLD_SIZE": str(self.count),
            "LOCAL_RANK": str(local_rank),
            "GROUP_WORLD_SIZE": str(self.node_count),
            "GROUP_RANK": str(self.node_rank),
        }


WORKER_ARGUMENTS = ("-P", "-X", "utf8", "-m", "distbench.worker")
"""Arguments of the Python that runs a worker process. With ``-P``, no file beside the training replaces a
module that distbench or torch imports, such as ``token.py``; the process appends its folder to the path.
Without UTF-8, DeepSpeed can't read its own sources in other locales."""
WorkerCommand = Literal["rank", "prepare", "examine"]
"""A command of ``python -m distbench.worker`` that a process of a launch runs."""


@dataclass(frozen=True)
class LaunchSpec:
    """Launch request of one trial, or of one preparation."""

    command: WorkerCommand
    """The command that each process runs."""
    instructions: Path
    """JSON file with its instructions; logs and results go to its folder."""
    processes: int
    nodes: int = 1
    """Number of nodes that they are spread over."""
    device: Device = "cpu"
    """Device that they compute on."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for every process, besides the inherited ones and those of *target*."""
    imports: tuple[str, ...] = ()
    """Modules that a fork server may import before it forks the ranks."""
    leftovers: tuple[str, ...] = ()
    """Glob patterns of files to remove afterwards; ``{port}`` stands for ``MASTER_PORT``."""
    target: PythonTarget = CURRENT_PYTHON
    ranks: RankRange | None = None
    """Ranks that one node starts; None: this one starts all of them."""
    run_folder: Path | None = None
    """Folder of the run, which contains the files that processes read and write; None: only the folder of
    *instructions*.
    """
    input_files: tuple[Path, ...] = ()
    """Files in it, besides *instructions*, that they read if they exist."""
    output_files: tuple[Path, ...] = ()
    """Files in it, outside the folder of *instructions*, that they leave for later launches."""
    once_per_cache: bool = False
    """True if each node with a cache of its own starts it, with one process."""
    is_sampled: bool = False
    """True if metrics sample while it runs: other nodes than the command's sample for themselves."""
    needs_shared_files: bool = False
    """True if processes read files that others of the same launch write."""
    start_s: float = TimeLimits().start
    """Seconds in which its ranks have to join each other; a fork server has as many for its imports."""

    @property
    def folder(self) -> Path:
        """Folder of the logs and results of its processes."""
        return self.instructions.parent

    @property
    def base_folder(self) -> Path:
        """Folder that contains all files of the launch."""
        return self.run_folder or self.folder

    @property
    def variables(self) -> dict[str, str]:
        """Variables for every process, besides the inherited ones."""
        return {**self.environment, **self.target.environment}

    @property
    def local_ranks(self) -> RankRange:
        """Ranks that this node starts."""
        return self.ranks or RankRange(self.processes, self.processes)

    def with_ranks(self, ranks: RankRange) -> LaunchSpec:
        """The part of the launch that starts *ranks*."""
        return replace(self, ranks=ranks)

    def worker_command(self) -> list[str]:
        """Command line of one of its processes."""
        return [self.target.python, *WORKER_ARGUMENTS, self.command, str(self.instructions)]
