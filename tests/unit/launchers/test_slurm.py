"""Slurm: the nodes of an allocation from what Slurm says in the environment, and what is handed to it.

With faults, and on nodes that are more than a name: tox -e cluster.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from distbench.core.errors import InfrastructureError
from distbench.launchers.base import QueuedJob
from distbench.launchers.nodes import AGENT_ARGUMENTS, Node
from distbench.launchers.slurm import Slurm
from distbench.launchers.slurm.queue import SlurmQueue
from support import fake_slurm
from support.network_nodes import OneHost, SlurmBench
from support.runs import MODELS, QUICK, Finished
from support.suites import write_suite

SUITE = QUICK.replace("[2]", "[4]") + "strategies: [pretended]\n"


@pytest.fixture
def in_allocation(tmp_path, monkeypatch) -> Callable[..., None]:
    """Puts this process into an allocation; its ``scontrol`` knows the names of three nodes."""

    def entered(**variables: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        scontrol = folder / "scontrol"
        scontrol.write_text(
            '#!/bin/sh\n[ "$1 $2 $3" = "show hostnames gpu[7-9]" ] && printf "gpu7\\ngpu8\\ngpu9\\n"\n'
        )
        scontrol.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        given = {"SLURM_JOB_NODELIST": "gpu[7-9]", "SLURM_JOB_NUM_NODES": "3", **variables}
        for name, value in given.items():
            monkeypatch.setenv(name, value)

    for name in ("SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_GPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    return entered


def test_a_node_takes_as_many_ranks_as_it_has_cores(in_allocation):
    in_allocation(SLURM_JOB_CPUS_PER_NODE="4(x2),2")
    assert Slurm().node_list() == [Node("gpu7", 4, 4), Node("gpu8", 4, 4), Node("gpu9", 2, 2)]
    assert [Slurm().node_count(processes, "cpu") for processes in (1, 4, 5, 9)] == [1, 1, 2, 3]


def test_a_node_takes_as_many_ranks_as_it_has_gpus(in_allocation):
    in_allocation(SLURM_JOB_CPUS_PER_NODE="64(x3)", SLURM_GPUS_ON_NODE="8")
    assert [Slurm().node_count(processes, "cuda") for processes in (8, 9, 24)] == [1, 2, 3]


def test_what_computes_on_cpus_takes_cores_also_where_there_are_gpus(in_allocation):
    in_allocation(SLURM_JOB_CPUS_PER_NODE="64(x3)", SLURM_GPUS_ON_NODE="8")
    assert Slurm().node_count(64, "cpu") == 1
    machine = Slurm().machine("cpu")
    assert machine.devices == 192
    assert "gpu7: 64, gpu8: 64, gpu9: 64" in str(Slurm().problem(193, machine))


@pytest.mark.parametrize(
    ("nodes", "launcher", "started"),
    [
        ("3", "", "srun"),
        ("1", "", "python"),
        ("1", "launcher: slurm\n", "srun"),
        ("3", "launcher: local\n", "python"),
    ],
)
def test_inside_an_allocation_of_several_nodes_all_of_them_are_used(
    tmp_path, in_allocation, distbench, nodes, launcher, started
):
    in_allocation(SLURM_JOB_CPUS_PER_NODE="2(x3)", SLURM_JOB_NUM_NODES=nodes)
    suite = write_suite(tmp_path, SUITE.replace("[4]", "[2]") + launcher)
    done = distbench("plan", str(suite), "--json")
    (launch,) = json.loads(done.stdout)["launches"]
    assert Path(launch["commands"][0][0]).name.startswith(started)


def test_outside_of_an_allocation_it_says_what_to_do(tmp_path, in_allocation, distbench):
    suite = write_suite(tmp_path, f"{SUITE}launcher: slurm\n")
    done = distbench("plan", str(suite))
    assert done.returncode == 2
    assert "suite.yaml:9: launcher.slurm: not inside a Slurm allocation; use sbatch" in done.stderr


@pytest.fixture
def sbatch(tmp_path, monkeypatch) -> Callable[[str], Path]:
    """Puts an sbatch into the path that keeps what it reads, and then does what it is told."""

    def installed(then: str) -> Path:
        folder = tmp_path / "slurm"
        folder.mkdir()
        program = folder / "sbatch"
        program.write_text(f'#!/bin/sh\necho "$@" > {folder}/options\ncat > {folder}/script\n{then}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        return folder

    return installed


REQUESTS = """launcher:
  slurm: {partition: "two words", gres: gpu:8, time: 02:00:00, requeue: true, warning: 300,
          sbatch: [--mem=0], setup: [module load cuda, '. "my env"/bin/activate']}
"""


def test_agents_are_started_inside_of_a_container_and_have_the_names_of_their_nodes():
    (command,) = Slurm(container=["echo", "inside"]).agent_commands([Node("gpu7", 8), Node("gpu8", 8)])
    shell = command[command.index("sh") :]
    assert {"--nodes=2", "--ntasks=2"} <= set(command)
    started = subprocess.run(
        shell, env={"SLURMD_NODENAME": "gpu7"}, capture_output=True, text=True, check=True
    )
    assert started.stdout.split() == ["inside", sys.executable, *AGENT_ARGUMENTS]


def test_what_is_handed_over_is_what_was_shown(tmp_path, sbatch, distbench):
    suite = write_suite(tmp_path, SUITE + REQUESTS, "it's a suite.yaml")
    asked = ["--on", "slurm", "--nodes", "4", "--set", "measure.steps=5", "--only", "pre*"]
    folder = sbatch("echo '17;near'")
    shown = distbench("launch", str(suite), *asked, "--print").stdout
    assert not folder.joinpath("script").exists()
    done = distbench("launch", str(suite), *asked)
    assert (done.returncode, done.stdout) == (0, "17;near\n")
    assert folder.joinpath("script").read_text() == shown
    assert shown.splitlines() == [
        "#!/bin/bash",
        "#SBATCH --job-name=distbench-it-s-a-suite",
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=1",
        '#SBATCH "--partition=two words"',
        "#SBATCH --gres=gpu:8",
        "#SBATCH --time=02:00:00",
        "#SBATCH --exclusive",
        "#SBATCH --requeue",
        "#SBATCH --signal=B:USR1@300",
        f"#SBATCH --chdir={MODELS}",
        "#SBATCH --mem=0",
        "module load cuda",
        '. "my env"/bin/activate',
        f"exec {sys.executable} -P -m distbench run {shlex.quote(str(suite))} --out reports "
        "--set measure.steps=5 --only 'pre*'",
    ]


def test_plan_shows_what_a_run_from_a_login_node_hands_over(tmp_path, distbench):
    suite = write_suite(tmp_path, SUITE)
    asked = ["plan", str(suite), "--on", "slurm", "--nodes", "2", "--out", f"{tmp_path}/100%"]
    shown = json.loads(distbench(*asked, "--json").stdout)["submission"]
    assert shown["command"] == ["sbatch", "--parsable"]
    assert f"#SBATCH --output={tmp_path}/100%%/RUN/submitted/%j.out\n" in shown["text"]
    last = f"exec {sys.executable} -P -m distbench run --resume {tmp_path}/100%/RUN --quiet\n"
    assert shown["text"].endswith(last)
    assert f"sbatch --parsable <<'END'\n{shown['text']}END\n" in distbench(*asked).stdout


@pytest.mark.parametrize(
    ("launcher", "arguments", "told"),
    [
        ("", [], "--on slurm: --nodes is missing"),
        ("", ["--nodes", "0"], "--on slurm: --nodes = 0: must be at least 1"),
        (
            "launcher: local\n",
            ["--nodes", "2"],
            "suite.yaml:9: launcher = 'local': does not match --on slurm",
        ),
        ("launcher: {slurm: {qos: high}}\n", ["--nodes", "2"], "unset the variable, or omit the option"),
        ('launcher: {slurm: {qos: "a\\nb"}}\n', ["--nodes", "2"], "sbatch does not allow line breaks"),
        ("", ["--nodes", "2"], "sbatch refused: sbatch: error: invalid partition specified: gone"),
    ],
)
def test_what_can_not_be_handed_over_says_why(tmp_path, sbatch, distbench, launcher, arguments, told):
    suite = write_suite(tmp_path, SUITE + launcher)
    sbatch("echo 'sbatch: error: invalid partition specified: gone' >&2; exit 1")
    variables = {"SBATCH_QOS": "low"} if "high" in launcher else {}
    done = distbench("launch", str(suite), "--on", "slurm", *arguments, **variables)
    assert done.returncode == (4 if "refused" in told else 2)
    assert told in done.stderr


def test_a_job_that_has_lost_a_node_names_it(tmp_path, monkeypatch):
    folder = fake_slurm.install(
        tmp_path / "slurm",
        scontrol="echo JobId=17 JobState=NODE_FAIL Reason=NodeDown ExitCode=0:0 NodeList=n[1-2]",
        sinfo="[[ $* == *--nodes=n\\[1-2]* ]] && printf 'n2: Not responding\\nn2: Not responding\\n'",
    )
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    # its exit code is not that of the command
    assert SlurmQueue().query("17") == QueuedJob("ended", "NODE_FAIL (n2: Not responding)", None)


def test_a_launcher_that_takes_no_runs_says_so(tmp_path, distbench):
    suite = write_suite(tmp_path, SUITE)
    done = distbench("launch", str(suite), "--on", "local", "--nodes", "2", "--print")
    assert (done.returncode, "--on local: this launcher can't submit runs" in done.stderr) == (2, True)


@pytest.mark.train
def test_a_suite_runs_on_all_nodes_of_a_real_allocation(tmp_path):
    suite = write_suite(tmp_path, f"{QUICK}strategies: [ddp]\n")
    command = [sys.executable, "-m", "distbench", "run", str(suite), "--out", str(tmp_path / "reports")]
    with closing(OneHost(tmp_path)) as host, closing(SlurmBench(host)) as slurm:
        slurm.call("salloc", "-N2", f"--chdir={MODELS}", *command)
    (run,) = (tmp_path / "reports").iterdir()
    assert Finished(0, "", {}, run).record("ddp")["nodes"] == {"n1": [0], "n2": [1]}


def test_a_scontrol_that_fails_is_told_with_what_it_said(in_allocation, tmp_path):
    in_allocation(SLURM_JOB_NODELIST="gpu[1-2]", SLURM_JOB_CPUS_PER_NODE="4(x2)")
    (tmp_path / "bin" / "scontrol").write_text("#!/bin/sh\necho 'Unable to contact controller' >&2\nexit 1\n")
    with pytest.raises(InfrastructureError, match=r"scontrol show .* code 1: Unable to contact controller"):
        Slurm().node_list()


@pytest.mark.parametrize(
    ("nodes", "chosen", "code"), [("3", "", 2), ("1", "", 0), ("3", "launcher: local\n", 0)]
)
def test_one_node_of_several_is_not_measured_in_silence_where_scontrol_is_missing(
    in_allocation, tmp_path, monkeypatch, distbench, nodes, chosen, code
):
    in_allocation(SLURM_JOB_NUM_NODES=nodes)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = distbench("plan", str(write_suite(tmp_path, SUITE.replace("[4]", "[1]") + chosen)))
    assert done.returncode == code, done.stderr
    told = "inside a Slurm job of 3 nodes, but scontrol, which names them, is not installed here"
    assert (told in done.stderr) == (code == 2)
    assert ("measure this node alone with launcher: local" in done.stderr) == (code == 2)


def test_what_slurm_has_not_told_is_named(in_allocation, monkeypatch):
    in_allocation()
    monkeypatch.delenv("SLURM_JOB_CPUS_PER_NODE", raising=False)
    with pytest.raises(InfrastructureError, match="SLURM_JOB_CPUS_PER_NODE is not set"):
        Slurm().node_list()
