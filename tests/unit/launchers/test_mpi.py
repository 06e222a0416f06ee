"""MPI: which hosts, and what is started on them. On a real mpirun: tox -e cluster."""

import itertools

import pytest

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.launchers.mpi import Mpi
from distbench.launchers.nodes import AGENT_ARGUMENTS
from support.runs import QUICK
from support.suites import write_suite


@pytest.fixture(autouse=True)
def outside_allocation(monkeypatch):
    """No allocation around."""
    for name in ("PBS_NODEFILE", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)


def mpirun_command(**options: object) -> list[str]:
    launcher: Mpi = registry.create_plugin("launchers", PluginChoice("mpi", {"slots": 4, **options}))
    assert launcher.option_problem() is None
    (command,) = launcher.agent_commands(launcher.node_list())
    return command


def test_open_mpi_starts_one_agent_on_each_host_and_binds_none(monkeypatch):
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5")
    command = mpirun_command(hosts=["a", "b"], mpirun=["mpirun", "--mca", "x", "1"], forward=["NCCL_IB_HCA"])
    assert command[:6] == ["mpirun", "--mca", "x", "1", "--host", "a,b"]
    assert command[6:12] == ["-n", "2", "--map-by", "ppr:1:node", "--bind-to", "none"]
    names = {name for flag, name in itertools.pairwise(command) if flag == "-x"}
    assert {"DISTBENCH_TOKEN", "DISTBENCH_CONTROLLERS", "DISTBENCH_RUN_ID", "NCCL_IB_HCA"} <= names
    assert "mlx5" not in " ".join(command)
    assert command[-len(AGENT_ARGUMENTS) :] == [*AGENT_ARGUMENTS]


def test_hydra_starts_one_agent_on_each_host():
    command = mpirun_command(hosts=["a", "b"], mpirun=["mpiexec.hydra"], implementation="hydra")
    assert command[:7] == ["mpiexec.hydra", "-hosts", "a,b", "-n", "2", "-ppn", "1"]


def test_hosts_are_those_of_the_file_or_the_allocation(tmp_path, monkeypatch):
    file = tmp_path / "hosts"
    file.write_text("# two\nnode-1 slots=8\n\nnode-2 slots=8 # last\n")
    assert mpirun_command(hostfile=str(file))[1:5] == ["--hostfile", str(file), "-n", "2"]
    assert mpirun_command(hostfile=str(file), nnodes=1)[3:5] == ["-n", "1"]
    file.write_text("node-1\nnode-1\nnode-2\nnode-2\nnode-3\n")
    monkeypatch.setenv("PBS_NODEFILE", str(file))
    assert mpirun_command()[1:3] == ["-n", "3"]
    monkeypatch.delenv("PBS_NODEFILE")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    assert mpirun_command()[1:3] == ["-n", "4"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("mpi", "launcher.mpi.hosts = []: not inside a Slurm or PBS allocation"),
        ("{mpi: {hosts: [a, a]}}", "launcher.mpi.hosts = ['a', 'a']: must list each host once"),
        ("{mpi: {hosts: [a, b], nnodes: 3}}", "launcher.mpi.nnodes = 3: there are 2 hosts"),
        ("{mpi: {hostfile: nowhere}}", "launcher.mpi.hostfile = 'nowhere': no such file"),
        ("{mpi: {hosts: [a], hostfile: b}}", "launcher.mpi.hostfile = 'b': hosts is also set"),
        ("{mpi: {hosts: [a], mpirun: []}}", "launcher.mpi.mpirun = []: needs a command"),
    ],
)
def test_hosts_that_can_not_be_meant_are_refused(tmp_path, distbench, options, told):
    suite = write_suite(tmp_path, f"{QUICK}strategies: [pretended]\nlauncher: {options}\n")
    done = distbench("plan", str(suite))
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
