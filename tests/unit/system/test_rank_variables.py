"""Variables of torchrun, mpirun, srun and others: the place of a process, or what is wrong with them."""

import pytest

from distbench.system.rank_variables import drop_rank_variables, read_placement, started_rank

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_RANK": "3",
    "MASTER_ADDR": "node-1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
DEEPSPEED = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_SIZE": "2",
    "CROSS_RANK": "1",
    "CROSS_SIZE": "2",
    "MASTER_ADDR": "node-1",
    "MASTER_PORT": "29500",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "408092673",
    "PMIX_RANK": "3",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "7", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
}
SBATCH = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}
# what mpirun and mpiexec have around them where they start their daemons by srun: a task on each node
DAEMON = {**SRUN, "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.mark.parametrize(
    "environment",
    [
        TORCHRUN,
        DEEPSPEED,
        OPEN_MPI,
        HYDRA,
        SRUN,
        {**DAEMON, **OPEN_MPI},
        {**DAEMON, **HYDRA},
        {**SRUN, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", **TORCHRUN},
        {**TORCHRUN, "LOCAL_RANK": "", **OPEN_MPI},
    ],
)
def test_each_launcher_tells_the_place(environment):
    own = read_placement(environment)
    assert (own.rank, own.world_size, own.local_rank, own.local_world_size) == (3, 4, 1, 2)
    assert own.node_count == 2
    assert started_rank(environment).rank == 3


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        (
            {},
            "none of RANK, OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID is set; start distbench by torchrun",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
            "RANK is set without LOCAL_RANK and LOCAL_WORLD_SIZE; start distbench by torchrun. Where one "
            "process was started on each node, set LOCAL_RANK=0 LOCAL_WORLD_SIZE=1",
        ),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "WORLD_SIZE is set without RANK and LOCAL_WORLD_SIZE"),
        (
            SBATCH,
            "SLURM_PROCID is set without SLURM_STEP_NUM_TASKS and SLURM_STEP_NUM_NODES; start distbench",
        ),
        ({**TORCHRUN, "RANK": "first"}, "RANK = 'first': must be a whole number"),
        ({**TORCHRUN, "WORLD_SIZE": "-4"}, "WORLD_SIZE = '-4': must be a whole number"),
        ({**TORCHRUN, "GROUP_WORLD_SIZE": "two"}, "GROUP_WORLD_SIZE = 'two': must be a whole number"),
        ({**TORCHRUN, "RANK": "4"}, "RANK = 4, WORLD_SIZE = 4, LOCAL_RANK = 1, LOCAL_WORLD_SIZE = 2, "),
        ({**TORCHRUN, "LOCAL_RANK": "2"}, "contradict each other; unset those that no launcher has set"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "8"}, "contradict each other"),
        ({**TORCHRUN, "WORLD_SIZE": "0"}, "contradict each other"),
        ({**TORCHRUN, "RANK": "0"}, "contradict each other"),
        ({**TORCHRUN, "GROUP_WORLD_SIZE": "3"}, "start equally many processes on each node"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "5"}, "start equally many processes on each node"),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "5"}, "start equally many processes on each node"),
        (
            {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"},
            "TORCHELASTIC_RESTART_COUNT = 1: torchrun has restarted this process, which would begin another",
        ),
    ],
)
def test_a_place_that_can_not_be_is_one_error(environment, told):
    with pytest.raises(ValueError, match=r".") as raised:
        read_placement(environment)
    assert told in str(raised.value)


def test_processes_of_a_job_share_a_digest_and_those_of_others_do_not():
    first = {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "SLURM_STEP_ID": "0"}
    last = {**TORCHRUN, "SLURM_STEP_ID": "1"}
    assert read_placement(first).job == read_placement(last).job
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"):
        assert read_placement({**last, name: "9"}).job != read_placement(last).job
    assert read_placement({**OPEN_MPI, "PMIX_NAMESPACE": "1"}).job != read_placement(OPEN_MPI).job
    assert read_placement({**SRUN, "SLURM_STEP_ID": "1"}).job != read_placement(SRUN).job


@pytest.mark.parametrize(
    "environment",
    [
        {},
        SBATCH,
        {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"},
        {"RANK": "first", "WORLD_SIZE": "many"},
        {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_a_process_without_others_was_started_alone(environment):
    assert started_rank(environment) is None


@pytest.mark.parametrize("environment", [TORCHRUN, DEEPSPEED, OPEN_MPI, HYDRA, SRUN])
def test_children_have_no_place_and_keep_the_rest(environment):
    left = {**environment, "PATH": "/bin", "NCCL_DEBUG": "WARN", "RANKS": "2"}
    drop_rank_variables(left)
    kept = {"PATH", "NCCL_DEBUG", "RANKS", *(name for name in environment if name.startswith("SLURM_"))}
    assert set(left) <= kept
    assert {"PATH", "NCCL_DEBUG", "RANKS"} <= set(left)
    with pytest.raises(ValueError, match="set"):
        read_placement(left)
