"""A run over two nodes in which a rank, an agent, a node, the command or a link fails, or is slow.

Each failure comes in the middle of the second of three trials. The first stays, the culprit is named, nobody
is left on any node, and ``--resume`` completes what the fault has cost.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fault_table import Drill
from support.network_nodes import Bench
from support.shell_jobs import soon
from support.two_node_faults import SUITE, Faulty, prepared

_PLAIN = SUITE.replace("[sleepy]", "[ddp]")
# 4 MB of gradients
HEAVY = _PLAIN.replace('user: {model: "small:Small", length: 32}', "transformer: {preset: tiny, seq_len: 32}")
# without telemetry: however busy the machine of both nodes is, every trial counts
LONG = HEAVY.replace("trials: 3", "trials: 12") + "metrics: [steptime, throughput, communication, profile]\n"
_SILENT_S, _AT_ONCE_S = 45.0, 10.0


@pytest.fixture(scope="module")
def shell(bench: Bench) -> list[str]:
    return bench.ssh()


@pytest.fixture
def ready(bench: Bench, shell: list[str], tmp_path: Path) -> Iterator[Faulty]:
    """A run that has not been started."""
    with prepared(bench, shell, tmp_path) as made:
        yield made


@pytest.fixture
def faulty(ready: Faulty) -> Faulty:
    """A run that is in the middle of its second trial."""
    ready.start()
    return ready


Fault = Callable[[Faulty], None]


def drilled(name: str, *values: object) -> Any:
    return pytest.param(*values, marks=pytest.mark.drill(f"two nodes: {name}"), id=name.replace(" ", "-"))


@pytest.mark.parametrize(
    ("number", "status", "within", "told"),
    [
        drilled("kill -9 of a rank", signal.SIGKILL, "crashed", _AT_ONCE_S, ": was killed by SIGKILL"),
        drilled("SIGSTOP of a rank", signal.SIGSTOP, "hang", 20.0, "rank 1 is stopped"),
    ],
)
def test_a_rank_that_fails_is_named_with_its_node(
    faulty: Faulty, drill: Drill, number: int, status: str, within: float, told: str
) -> None:
    faulty.strikes()
    faulty.rank(1).send_signal(number)
    drill.noticed(faulty.noticed(within))
    record = faulty.record(1)
    drill.seen(record["reason"])
    assert told in record["reason"]
    assert f"rank 1 is on {faulty.bench.nodes[1]}" in record["reason"]
    assert faulty.ends() == 1
    assert faulty.statuses() == ["measured", status, "measured"]
    assert not faulty.left()
    assert faulty.resume("--retry-failed") == 0
    assert faulty.statuses() == ["measured"] * 3


@pytest.mark.drill("two nodes: kill -9 of an agent")
def test_an_agent_that_is_lost_is_named_and_replaced(faulty: Faulty, drill: Drill) -> None:
    faulty.strikes()
    faulty.found(1, "distbench.worker", "agent").kill()
    drill.noticed(faulty.noticed(_AT_ONCE_S))
    record = faulty.record(1)
    drill.seen(record["reason"])
    assert f"lost the agent on {faulty.bench.nodes[1]}" in record["reason"]
    assert record["failure"]["phase"] == "node"
    assert faulty.ends() == 1
    assert faulty.statuses() == ["measured", "crashed", "measured"]
    assert not faulty.left()
    assert faulty.resume() == 0, faulty.log()
    assert faulty.statuses() == ["measured"] * 3


@pytest.mark.drill("two nodes: kill -9 of the command")
def test_no_process_outlives_a_command_that_is_killed(faulty: Faulty, drill: Drill) -> None:
    faulty.strikes()
    faulty.found(0, "-m", "distbench", "run").kill()
    drill.noticed(soon(lambda: not faulty.left(), "processes were left", _AT_ONCE_S))
    faulty.ends()
    assert faulty.resume() == 0
    assert faulty.statuses() == ["measured"] * 3


@pytest.mark.drill("two nodes: the link of one is down for 5 s")
def test_a_link_that_is_down_for_a_moment_costs_time_only(faulty: Faulty, drill: Drill) -> None:
    faulty.bench.cut(faulty.bench.nodes[1])
    time.sleep(5)
    faulty.bench.mend(faulty.bench.nodes[1])
    assert faulty.ends() == 0, faulty.log()
    drill.seen("nothing: the trial takes longer")
    assert faulty.statuses() == ["measured"] * 3
    assert max(faulty.record(1)["samples"]["step_s"][0]) > 4


@pytest.mark.drill("two nodes: the link of one is down for good")
def test_a_link_that_stays_down_ends_the_run_which_is_resumed(faulty: Faulty, drill: Drill) -> None:
    lost = faulty.bench.nodes[1]
    faulty.strikes()
    faulty.bench.cut(lost)
    try:
        drill.noticed(faulty.noticed(_SILENT_S))
        drill.seen(faulty.record(1)["reason"])
        assert lost in faulty.record(1)["reason"]
        assert faulty.ends() == 4
        assert f"--resume {faulty.run}" in faulty.log()
        soon(lambda: not faulty.left(), f"processes were left: {faulty.left()}", _SILENT_S)
    finally:
        faulty.bench.mend(lost)
    assert faulty.statuses() == ["measured", "crashed"]
    assert faulty.resume() == 0
    assert faulty.statuses() == ["measured"] * 3


@pytest.mark.drill("two nodes: SIGSTOP of an agent, whose ranks deliver")
def test_an_agent_that_is_stopped_costs_no_trial_and_is_replaced(faulty: Faulty, drill: Drill) -> None:
    agent = faulty.found(1, "distbench.worker", "agent")
    faulty.strikes()
    agent.suspend()
    drill.noticed(faulty.noticed(2 * _SILENT_S))
    assert faulty.ends() == 0, faulty.log()
    drill.seen("nothing: ranks need no agent to deliver; the next trial has another")
    assert faulty.statuses() == ["measured"] * 3
    assert not agent.is_running()


@pytest.mark.drill("two nodes: SIGSTOP of the command for 40 s")
def test_agents_give_up_a_command_that_is_stopped(faulty: Faulty, drill: Drill) -> None:
    command = faulty.found(0, "-m", "distbench", "run")
    faulty.strikes()
    command.suspend()
    drill.noticed(soon(lambda: not faulty.left(), "agents did not give up", _SILENT_S))
    command.resume()
    faulty.ends()
    # ranks that can deliver before their agents give up lose nothing
    drill.seen(faulty.record(1)["reason"] or "nothing: the ranks had delivered")
    if faulty.statuses() != ["measured"] * 3:
        assert faulty.resume() == 0
    assert faulty.statuses() == ["measured"] * 3


@pytest.mark.drill("two nodes: one of them dies")
def test_a_node_that_dies_ends_the_run_which_is_resumed(faulty: Faulty, drill: Drill) -> None:
    lost = faulty.bench.nodes[1]
    faulty.strikes()
    faulty.bench.die(lost)
    try:
        drill.noticed(faulty.noticed(_SILENT_S))
        drill.seen(faulty.record(1)["reason"])
        assert lost in faulty.record(1)["reason"]
        assert faulty.record(1)["failure"]["phase"] == "node"
        assert faulty.ends() == 4
        assert f"--resume {faulty.run}" in faulty.log()
        assert not faulty.left()
    finally:
        faulty.bench.revive(lost)
    assert faulty.statuses() == ["measured", "crashed"]
    assert faulty.resume() == 0
    assert faulty.statuses() == ["measured"] * 3
    assert not faulty.left()


@pytest.mark.drill("two nodes: the link is slow for a while")
def test_a_link_that_is_slow_for_a_while_is_seen_in_the_transfers(ready: Faulty, drill: Drill) -> None:
    ready.suite = HEAVY
    ready.start()
    ready.bench.rate("20mbit")
    try:
        ready.noticed(120)
    finally:
        ready.bench.unlimit()
    assert ready.ends() == 0, ready.log()
    drill.seen("nothing fails: the transfers of the trial take longer")
    assert ready.statuses() == ["measured"] * 3
    before, meanwhile, after = (ready.record(number)["values"]["comm_between_s"] for number in range(3))
    # without the limit, each of the three may be the longest
    assert meanwhile > 10 * max(before, after)


@pytest.mark.drill("two nodes: one has a fifth of a core")
def test_a_node_that_is_slow_is_named(ready: Faulty, drill: Drill) -> None:
    slow = ready.bench.nodes[1]
    ready.suite, ready.timeout_s, ready.options = LONG, 180, ", may_differ: [cpu_cores]"
    try:
        with ready.bench.throttled(slow, 0.2):
            ready.start()
            assert ready.ends() == 0, ready.log()
    except NotImplementedError as error:
        drill.impossible(str(error))
    assert [ready.record(number)["status"] for number in range(12)] == ["measured"] * 12
    _, straggler, named = " ".join(ready.log().split()).partition("Straggler: ")
    drill.seen(straggler + named)
    assert named.startswith(f"rank 1 on {slow} is slowest in "), ready.log()
