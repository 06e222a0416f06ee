"""Time limits: by a clock that nobody sets, and with the name of the rank that holds up the others."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from distbench.core.job import job_kind
from distbench.core.measurement import TimeLimits
from distbench.ipc.messages import RankExit
from distbench.ipc.trial_files import (
    ProgressWriter,
    error_file,
    log_file,
    partial_result_file,
    progress_file,
    result_file,
)
from distbench.record import Status
from distbench.run.hang_diagnosis import HangSuspect, rank_outside_collective, stopped_rank, waits_text
from distbench.run.interruption import StopRequest
from distbench.run.trial_monitor import TrialMonitor
from support.fake_launches import FakeLaunch
from support.runs import QUICK, Finished, record_of, run_in

LIMITS = TimeLimits(start=1, step=1, trial=30)


class Clock:
    """A monotonic clock that goes on by what is waited, however slow the machine is."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """The clock that limits are measured by in this test."""
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made)
    return made


class TwoRankLaunch(FakeLaunch):
    """Two ranks in one step; what befalls them is told by ``during``, called whenever they are waited for."""

    def __init__(
        self, folder: Path, clock: Clock, during: Callable[[int], None] = lambda number: None
    ) -> None:
        self.folder, self._clock, self._during, self._waits = folder, clock, during, 0
        self.progress = [ProgressWriter(progress_file(folder, rank)) for rank in range(2)]
        self.logs: Mapping[int, str] = {}
        self.stopped: Mapping[int, str] = {}
        for progress in self.progress:
            progress.report("time", 1)

    def wait(self, seconds: float) -> list[RankExit]:
        self._clock.now += seconds
        self._during(self._waits)
        self._waits += 1
        assert self._clock.now < 1100, "no limit was noticed"
        if self._waits < ORDINARY_WAITS:
            return []
        return [RankExit(rank, 0, 0.0) for rank in range(2) if result_file(self.folder, rank).is_file()]

    def signal(self, number: int) -> None:
        for rank in range(2):
            log_file(self.folder, rank).write_text(f"epoch 1\n{self.logs.get(rank, '')}")

    def process_states(self) -> Mapping[int, str]:
        return {0: "S", 1: "S", **self.stopped}


# four a second: twice the limit of a step
ORDINARY_WAITS = 8


def watch(ranks: TwoRankLaunch, **options: bool) -> TrialMonitor:
    return TrialMonitor(ranks, ranks.folder, 2, LIMITS, StopRequest(), job_kind("measure"), **options)


@pytest.mark.parametrize(
    ("hours", "hangs"),
    [
        pytest.param(2, False, marks=pytest.mark.drill("the clock goes 2 h ahead in a healthy trial")),
        pytest.param(-2, False, marks=pytest.mark.drill("the clock goes 2 h back in a healthy trial")),
        pytest.param(-1, True, marks=pytest.mark.drill("the clock goes 1 h back while a rank hangs")),
    ],
)
def test_a_clock_that_is_set_hides_no_hang_and_makes_none(tmp_path, monkeypatch, clock, hours, hangs):
    right = time.time

    def during(number: int) -> None:
        if number == 2:
            monkeypatch.setattr(time, "time", lambda: right() + 3600 * hours)
        if not hangs:
            ranks.progress[0].report("time", number)
            ranks.progress[1].report("time", number)
        if number == ORDINARY_WAITS - 2 and not hangs:
            for rank in range(2):
                result_file(tmp_path, rank).write_text("{}")

    ranks = TwoRankLaunch(tmp_path, clock, during)
    assert watch(ranks).wait().status is (Status.HANG if hangs else Status.MEASURED)


@pytest.mark.parametrize(("delivered", "status"), [((0, 1), Status.MEASURED), ((0,), Status.HANG)])
def test_a_hang_when_every_rank_has_delivered_what_was_timed_costs_only_what_is_missing(
    tmp_path, clock, delivered, status
):
    ranks = TwoRankLaunch(tmp_path, clock)
    for rank in delivered:
        partial_result_file(tmp_path, rank).write_text("{}")
    ending = watch(ranks).wait()
    assert ending.status is status
    assert ending.reason.startswith("incomplete: exceeded limits.step" if len(delivered) == 2 else "exceeded")


def test_a_mismatch_is_one_whatever_was_delivered_before(tmp_path, clock):
    ranks = TwoRankLaunch(tmp_path, clock)
    for rank in range(2):
        partial_result_file(tmp_path, rank).write_text("{}")
    told = {"at": 1.0, "phase": "check", "types": ["Mismatch"], "message": "gradients: not synchronised"}
    error_file(tmp_path, 1).write_text(json.dumps(told))
    assert watch(ranks).wait().status is Status.MISMATCH


@pytest.mark.parametrize(
    ("written", "blamed", "reason"),
    [
        (
            "terminate called\n  what():  Resource temporarily unavailable\n",
            0,
            "Resource temporarily unavailable",
        ),
        ("terminate called\n  what():  [pair.cc:547] Connection closed by peer [127.0.0.1]\n", 1, "SIGKILL"),
        ("", 1, "SIGKILL"),
    ],
)
def test_an_abort_has_the_message_of_the_exception_that_nobody_caught(
    tmp_path, clock, written, blamed, reason
):
    class Ended(TwoRankLaunch):
        def wait(self, seconds: float) -> list[RankExit]:
            super().wait(seconds)
            return [RankExit(0, -signal.SIGABRT, 1.0), RankExit(1, -signal.SIGKILL, 2.0)]

    ranks = Ended(tmp_path, clock)
    log_file(tmp_path, 0).write_text(written)
    ending = watch(ranks).wait()
    assert ending.failure is not None
    assert (ending.status, ending.failure.rank) == (Status.CRASHED, blamed)
    assert reason in ending.reason


WAITING = """
Thread 0x00007f52d5dff6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f53e2b4a740 (most recent call first):
  File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 2955 in all_reduce
  File "/venv/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/project/train.py", line 7 in forward
"""
BACKWARD = """
Current thread 0x00007f53e2b4a740 (most recent call first):
  File "/venv/site-packages/torch/autograd/graph.py", line 829 in _engine_run_backward
  File "/venv/site-packages/torch/_tensor.py", line 630 in backward
  File "/repo/distbench/strategies/torch_engine/engine.py", line 70 in forward_backward
"""
OTHER_CODE = """
Current thread 0x00007f53e2b4a740 (most recent call first):
  File "/venv/site-packages/torch/nn/functional.py", line 1697 in relu
  File "/venv/site-packages/torch/nn/modules/module.py", line 1773 in _wrapped_call_impl
  File "/project/my model.py", line 12 in forward
  File "/venv/site-packages/torch/distributed/fsdp/_fully_shard/_fsdp_state.py", line 62 in fsdp_hook_wrapper
"""


def test_the_rank_that_waits_for_no_other_is_named_by_the_stacks():
    blamed = rank_outside_collective({0: WAITING, 1: f"{WAITING}later\n{OTHER_CODE}", 2: BACKWARD})
    assert blamed is not None
    assert blamed.rank == 1
    assert "forward (my model.py:12)" in blamed.evidence


@pytest.mark.parametrize(
    "logs",
    [
        {0: WAITING, 1: BACKWARD},
        {0: OTHER_CODE, 1: OTHER_CODE},
        {0: WAITING, 1: OTHER_CODE, 2: OTHER_CODE},
        {0: OTHER_CODE},
        {0: "nothing", 1: OTHER_CODE},
    ],
    ids=["all may wait", "none waits", "two wait for none", "one rank", "no stack"],
)
def test_without_evidence_against_one_rank_nobody_is_blamed(logs):
    assert rank_outside_collective(logs) is None


# both wait for a second rank that never comes
ALONE = {
    "join": 'join_process_group(0, 2, torch.device("cpu"), None, join_timeout_s=60, collective_timeout_s=60)',
    "agreement": 'StoreExchange(torch.distributed.HashStore(), 0, 2, 60.0).all_gather("fp64", "it fails")',
}


@pytest.mark.train
@pytest.mark.parametrize("waits", ALONE)
def test_a_rank_that_waits_where_ranks_meet_is_not_blamed(waits):
    code = f"""
import faulthandler, torch
from distbench.worker.rendezvous import StoreExchange, join_process_group

faulthandler.dump_traceback_later(1, exit=True)
{ALONE[waits]}
"""
    meets = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **meets}, capture_output=True, text=True, check=False
    )
    assert "rendezvous.py" in done.stderr, done.stderr
    stack = done.stderr.replace("Thread 0x", "Current thread 0x", 1)
    assert rank_outside_collective({0: stack, 1: OTHER_CODE}) == rank_outside_collective(
        {0: WAITING, 1: OTHER_CODE}
    )


def test_only_a_state_that_lasts_is_evidence():
    assert stopped_rank({0: "S", 1: "D"}, {0: "D", 1: "S"}, "D") is None
    assert stopped_rank({0: "S", 1: "T"}, {0: "S", 1: "T"}, "D") is None
    assert stopped_rank({0: "D", 1: "D"}, {0: "D", 1: "D"}, "D") is None
    assert stopped_rank({0: "S", 1: "D"}, {0: "S", 1: "D"}, "D") == HangSuspect(
        1, "is in uninterruptible sleep (state D), as when it waits for a device or a file system"
    )


@pytest.mark.parametrize(
    ("stopped", "logs", "ahead", "blamed"),
    [
        ({0: "T"}, {0: WAITING, 1: OTHER_CODE}, 0, 0),
        ({0: "D"}, {0: WAITING, 1: OTHER_CODE}, 0, 1),
        ({1: "D"}, {0: WAITING, 1: WAITING}, None, 1),
        ({}, {0: WAITING, 1: OTHER_CODE}, None, 1),
        ({}, {0: WAITING, 1: WAITING}, None, None),
    ],
    ids=["one is stopped", "one is behind", "one waits for a device", "one waits for none", "all wait"],
)
def test_a_stopped_rank_is_blamed_first_and_then_one_that_is_behind(
    tmp_path, clock, stopped, logs, ahead, blamed
):
    ranks = TwoRankLaunch(tmp_path, clock)
    ranks.stopped, ranks.logs = stopped, logs
    if ahead is not None:
        ranks.progress[ahead].report("time", 2)
    ending = watch(ranks).wait()
    assert ending.status is Status.HANG
    assert ending.failure is not None
    assert ending.failure.rank == blamed


def test_where_a_gpu_computes_the_stacks_of_its_ranks_are_no_evidence(tmp_path, clock):
    ranks = TwoRankLaunch(tmp_path, clock)
    ranks.logs = {0: WAITING, 1: OTHER_CODE}
    ending = watch(ranks, blame_by_stack=False).wait()
    assert ending.failure is not None
    assert ending.failure.rank is None


def test_where_ranks_wait_for_each_other_is_told():
    cause = "; ranks wait for different operations if the path through the model depends on the data"
    assert waits_text({0: WAITING, 1: BACKWARD}).startswith(
        f"rank 0 waits in all_reduce, called by forward (train.py:7), rank 1 in a backward pass{cause}"
    )
    assert waits_text({0: BACKWARD, 1: BACKWARD}).startswith(f"all ranks wait in a backward pass{cause}")
    assert waits_text({0: WAITING, 1: WAITING}) == (
        "all ranks wait in all_reduce, called by forward (train.py:7)"
    )
    assert waits_text({0: WAITING, 1: "nothing"}) == waits_text({0: WAITING, 1: OTHER_CODE}) == ""


HANG = ("Stops", "HoldsTheLock", "Ignores", "WaitInVain")
SUITE = QUICK + "launcher: local\nstrategies: [ddp]\n"


@pytest.fixture(scope="module")
def hanging_run(tmp_path_factory) -> Finished:
    """A run of all models that hang in their own way."""
    models = ", ".join(f"ends:{model}" for model in HANG)
    text = SUITE.replace("step: 30", "step: 3") + f"axes: {{workload.user.model: [{models}]}}\n"
    return run_in(tmp_path_factory.mktemp("hung"), text)


IN_VAIN = "all ranks wait in recv, called by trouble (ends.py:96)"


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize(
    ("model", "blamed", "told"),
    [
        pytest.param("Stops", 1, "rank 1 is stopped", marks=pytest.mark.drill("rank 1: SIGSTOP")),
        pytest.param("HoldsTheLock", 1, "in act", marks=pytest.mark.drill("rank 1 hangs in C with the GIL")),
        pytest.param("Ignores", None, "", marks=pytest.mark.drill("rank 1 hangs, ignoring TERM, INT, USR1")),
        pytest.param("WaitInVain", None, IN_VAIN, marks=pytest.mark.drill("each rank waits for the other")),
    ],
)
def test_a_hang_ends_at_its_limit_and_blames_by_evidence(hanging_run, drill, model, blamed, told):
    record = record_of(hanging_run, f"ends:{model}")
    drill.noticed(record["wall_s"])
    drill.seen(record["reason"])
    assert (record["status"], record["failure"]["rank"]) == ("hang", blamed)
    assert told in record["reason"]


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.drill("the clock of the ranks goes 2 h ahead in a trial")
def test_what_is_sampled_meanwhile_is_found_although_the_clock_was_set(tmp_path):
    text = SUITE.replace("small:Small", "ends:SetTheClock").replace("steps: 3", "steps: 30")
    record = run_in(tmp_path, text).record("ddp")
    assert record["status"] == "measured"
    assert "host_foreign_cpu" in record["values"], record["absent"]
