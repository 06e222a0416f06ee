"""Variables by which torchrun, mpirun, srun and others place a process among those that they start.

PyTorch: https://docs.pytorch.org/docs/stable/elastic/run.html (environment variables). DeepSpeed: its module
``launcher.launch``. Open MPI: https://docs.open-mpi.org/en/main/tuning-apps/environment-var.html. Hydra:
``pm/hydra`` of MPICH. Slurm: https://slurm.schedmd.com/srun.html (output environment variables).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RankVariables:
    """Names of the variables that one kind of launcher sets."""

    launchers: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str = ""
    """Processes on this node; empty: the launcher sets none."""
    nodes: str = ""
    """Number of nodes; empty: the launcher sets none."""
    job: tuple[str, ...] = ()
    """Variables that are the same in all processes of a job, and together different from those of others."""

    @property
    def required(self) -> tuple[str, ...]:
        """Variables without which a process has no place."""
        return self.rank, self.world_size, self.local_rank, self.local_world_size or self.nodes


# the first that is complete counts: torchrun may run inside of mpirun, and that inside of srun
_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_MASTER = ("MASTER_ADDR", "MASTER_PORT")
KNOWN_VARIABLES = (
    RankVariables(
        "torchrun",
        *_TORCH,
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        job=(*_MASTER, "TORCHELASTIC_RUN_ID"),
    ),
    RankVariables("deepspeed", *_TORCH, "LOCAL_SIZE", "CROSS_SIZE", job=_MASTER),
    RankVariables(
        "mpirun of Open MPI, or jsrun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        job=("PMIX_NAMESPACE", "LSB_JOBID"),
    ),
    RankVariables(
        "mpiexec of MPICH or Intel MPI",
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        job=("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"),
    ),
    RankVariables(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        nodes="SLURM_STEP_NUM_NODES",
        job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
)
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
_NAMES = frozenset(
    (
        *(name for known in KNOWN_VARIABLES for name in (*known.required, known.nodes)),
        *(*_MASTER, "GROUP_RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "CROSS_RANK", "NODE_RANK"),
        "SLURM_NODEID",
    )
) - {""}
_PREFIXES = ("TORCHELASTIC_", "OMPI_", "PMIX_", "PMI_", "HYDI_", "MPI_LOCAL")


@dataclass(frozen=True)
class JobPlacement:
    """Place of this process among those that another launcher has started."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    """Processes on this node, as on each."""
    job: str
    """Digest that all processes of the job share."""

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return self.world_size // self.local_world_size


@dataclass(frozen=True)
class StartedRank:
    """One of several processes that another launcher has started."""

    rank: int
    variables: str
    """The variables that say so, as text."""


def started_rank(environment: Mapping[str, str]) -> StartedRank | None:
    """This process as one of several, by *environment*; None if it was started alone.

    A batch script of Slurm is: it has a rank, but is no step.
    """
    for known in KNOWN_VARIABLES:
        rank, size = environment.get(known.rank, ""), environment.get(known.world_size, "")
        if rank.isdecimal() and size.isdecimal() and int(size) > 1:
            return StartedRank(int(rank), f"{known.rank} = {rank}, {known.world_size} = {size}")
    return None


def read_placement(environment: Mapping[str, str]) -> JobPlacement:
    """Place of this process by *environment*.

    Raises:
        ValueError: variables are missing or contradict each other, or this is a restarted process.
    """
    known = _matching_variables(environment)
    value = {name: _number(environment, name) for name in known.required}
    rank, size, local_rank = (value[name] for name in known.required[:3])
    nodes = _number(environment, known.nodes) if environment.get(known.nodes) else 0
    local_size = value[known.local_world_size] if known.local_world_size else size // max(1, nodes)
    given = ", ".join(
        f"{name} = {environment[name]}" for name in (*known.required, known.nodes) if environment.get(name)
    )
    if not (rank < size and local_rank < local_size <= size and local_rank <= rank):
        raise ValueError(f"{given}: contradict each other; unset those that no launcher has set")
    if size % local_size or (nodes and nodes * local_size != size):
        raise ValueError(f"{given}: start equally many processes on each node")
    if environment.get(_RESTARTS, "0") != "0":
        raise ValueError(
            f"{_RESTARTS} = {environment[_RESTARTS]}: torchrun has restarted this process, which would begin "
            "another run; use --max-restarts 0, and distbench run --resume RUN"
        )
    shared = [f"{name}={environment.get(name, '')}" for name in known.job]
    digest = hashlib.sha256("\n".join(shared).encode()).hexdigest()[:12]
    return JobPlacement(rank, size, local_rank, local_size, digest)


def is_rank_variable(name: str) -> bool:
    """True if the variable *name* places a process among others."""
    return name in _NAMES or name.startswith(_PREFIXES)


def drop_rank_variables(environment: MutableMapping[str, str]) -> None:
    """Remove from *environment* what places this process among others, so that its children don't read it."""
    for name in list(environment):
        if is_rank_variable(name):
            del environment[name]


def _matching_variables(environment: Mapping[str, str]) -> RankVariables:
    """Variables of the launcher that has started this process.

    Raises:
        ValueError: there is none, or its variables are incomplete.
    """
    missing = {
        known: [name for name in known.required if not environment.get(name)] for known in KNOWN_VARIABLES
    }
    nearest = min(KNOWN_VARIABLES, key=lambda known: len(missing[known]))
    if not (absent := missing[nearest]):
        return nearest
    present = [name for name in nearest.required if environment.get(name)]
    if not present:
        names = ", ".join(dict.fromkeys(known.rank for known in KNOWN_VARIABLES))
        raise ValueError(
            f"none of {names} is set; start distbench by torchrun, mpirun or srun, or use another launcher"
        )
    message = f"{present[0]} is set without {' and '.join(absent)}; start distbench by {nearest.launchers}"
    default = {nearest.local_rank: "0", nearest.local_world_size: "1"}
    if default.keys() >= set(absent):
        one = " ".join(f"{name}={default[name]}" for name in absent)
        message += f". Where one process was started on each node, set {one}"
    raise ValueError(message)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not text.isdecimal():
        raise ValueError(f"{name} = {text!r}: must be a whole number")
    return int(text)
