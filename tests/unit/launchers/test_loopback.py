"""Sockets of ranks on this machine are on its loopback interface, whatever its name resolves to."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import psutil
import pytest

from distbench.launchers.base import NodesUnavailableError
from distbench.launchers.local import Local
from support.leftover_processes import listening_addresses
from support.runs import MODELS, QUICK
from support.shell_jobs import launch_of
from support.suites import write_suite

BOTH_VARIABLES = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


@pytest.fixture
def no_interface_variables(monkeypatch):
    for name in BOTH_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_gloo_and_nccl_are_told_the_loopback_interface(no_interface_variables):
    assert Local().environment() == BOTH_VARIABLES


def test_an_interface_that_the_user_names_is_left_to_the_ranks(no_interface_variables, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert "GLOO_SOCKET_IFNAME" not in Local().environment()


def test_an_interface_that_does_not_exist_is_refused_before_a_rank_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "^docker0,lo")
    with (
        closing(Local(oversubscribe=True).open_session("drill")) as session,
        pytest.raises(
            NodesUnavailableError, match=r"^GLOO_SOCKET_IFNAME = \^docker0,lo: gloo takes names only"
        ),
    ):
        session.launch(launch_of(tmp_path, ":", 2))
    assert not (tmp_path / "warm_parent.log").exists()


def test_a_plan_shows_where_sockets_are_opened(tmp_path, distbench, no_interface_variables):
    suite = write_suite(tmp_path, QUICK + "strategies: [pretended]\n")
    (launch,) = json.loads(distbench("plan", str(suite), "--json").stdout)["launches"]
    assert launch["environment"].items() >= BOTH_VARIABLES.items()
    assert "export GLOO_SOCKET_IFNAME=lo" in distbench("plan", str(suite), "--commands").stdout


@pytest.mark.train
def test_a_record_says_where_sockets_were_opened(run_suite, no_interface_variables):
    record = run_suite(QUICK + "strategies: [ddp]\n").record("ddp")  # type: ignore[attr-defined]
    assert record["environment"]["variables"].items() >= BOTH_VARIABLES.items()


@pytest.fixture
def other_interface(tmp_path, drill) -> list[str]:
    """Command that runs another where the machine's name resolves to its address on a network."""
    addresses = [
        each.address
        for name, of_one in psutil.net_if_addrs().items()
        for each in of_one
        if name != "lo" and each.family.name == "AF_INET"
    ]
    if not addresses:
        drill.impossible("this machine is on no network")
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n{addresses[0]} distbench-drill\n")
    script = 'hostname distbench-drill && mount --bind "$0" /etc/hosts && exec "$@"'
    command = ["unshare", "--mount", "--uts", "sh", "-c", script, str(tmp_path / "hosts")]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        drill.impossible(f"no namespaces can be made here: {tried.stderr.strip()}")
    return command


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.drill("the name of the machine resolves to its address on a network")
def test_no_rank_listens_on_a_network(tmp_path, other_interface, no_interface_variables, drill):
    suite = tmp_path / "suite.yaml"
    text = QUICK.replace("small:Small", "small:HangsIfAsked").replace("step: 30", "step: 500")
    suite.write_text(f"{text}strategies: [ddp]\n")
    run = [sys.executable, "-m", "distbench", "run", str(suite), "--out", str(tmp_path / "out")]
    with subprocess.Popen(
        [*other_interface, *run],
        cwd=MODELS,
        env={**os.environ, "SMALL_HANGS": "1"},
        stdout=subprocess.DEVNULL,
    ) as command:
        end = time.monotonic() + 120
        while not any(
            "time" in file.read_text() for file in tmp_path.glob("out/*/trials/*/0/rank1.progress")
        ):
            assert command.poll() is None and time.monotonic() < end
            time.sleep(0.1)
        listening = [
            address
            for process in psutil.Process(command.pid).children(recursive=True)
            for address in listening_addresses(process)
        ]
        command.send_signal(signal.SIGINT)
    drill.seen(", ".join(sorted(set(listening))))
    assert len(listening) >= 3, "the store, and gloo in both ranks"
    assert set(listening) <= {"127.0.0.1", "::1"}
