"""A failing case is a result: it gets a status and a reason, and the suite goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.leftover_processes import alive
from support.runs import MODELS, PLUGINS, QUICK, Finished, record_of, run_in

Run = Callable[..., Finished]


def suite(model: str, strategies: str = "[ddp]", **more: str) -> str:
    extra = "\n".join(f"{key}: {value}" for key, value in more.items())
    head = QUICK.replace("small:Small", f"small:{model}")
    return f"{head}launcher: local\nstrategies: {strategies}\n{extra}\n"


MODELS_IN_TROUBLE = (
    *("RaisesInRankOne", "LeavesInRankOne", "LeavesQuietlyInRankOne", "KilledInRankOne", "OutOfMemory"),
    *("LeavesQuietly", "NotANumber", "raises", "no_module", "LeavesAChildBehind", "RealTimeSignalInRankOne"),
    "KilledAfterTheWindow",
)
# a suite that names no metrics takes all that are found, so that this one is found by this run alone
FALTERS = """
from dataclasses import dataclass

from distbench.metrics.base import Column, Metric


@dataclass(frozen=True)
class Falters(Metric):
    '''Raises in one rank.'''

    columns = (Column("falters", "", None, "max", "Never told by rank 1."),)

    def values(self, session, state):
        return {"falters": 1.0 / (1 - session.rank)}
"""


@pytest.fixture(scope="module")
def troubled(tmp_path_factory) -> Finished:
    """A run of all models that fail in their own way, one after another under the same fork server."""
    axis = ", ".join(f"small:{model}" for model in MODELS_IN_TROUBLE)
    text = suite("Small", axes=f"{{workload.user.model: [{axis}]}}").replace("steps: 3", "steps: 5")
    folder = tmp_path_factory.mktemp("troubled")
    (folder / "metrics").mkdir()
    (folder / "metrics" / "falters.py").write_text(FALTERS)
    return run_in(folder, text, DISTBENCH_PLUGINS=os.pathsep.join([PLUGINS, str(folder)]))


def row_of(finished: Finished, model: str) -> dict[str, Any]:
    """Row of the only case of *model*."""
    (row,) = [row for name, row in finished.cases.items() if name.endswith(f"model=small:{model}")]
    return row


@pytest.mark.drill("rank 1 raises")
def test_the_rank_that_raised_is_named_with_its_traceback_and_not_its_victims(troubled, drill):
    record = record_of(troubled, "small:RaisesInRankOne")
    drill.seen(record["reason"])
    assert troubled.code == 1
    assert row_of(troubled, "RaisesInRankOne")["status"] == "crashed"
    assert record["failure"]["rank"] == 1
    assert "the dog ate my gradients" in record["reason"]
    assert "in trouble" in record["failure"]["traceback"]
    assert record["devices"][1]["kind"] == "cpu", "where a rank ran is known although it failed"


@pytest.mark.parametrize(
    ("model", "told"),
    [
        pytest.param("LeavesInRankOne", "code 7", marks=pytest.mark.drill("rank 1: os._exit(7)")),
        pytest.param("LeavesQuietlyInRankOne", "code 0", marks=pytest.mark.drill("rank 1: os._exit(0)")),
        pytest.param("KilledInRankOne", "SIGKILL", marks=pytest.mark.drill("rank 1: kill -9")),
        pytest.param("RealTimeSignalInRankOne", "signal 40", marks=pytest.mark.drill("rank 1: signal 40")),
    ],
)
def test_a_rank_that_leaves_without_a_word_is_named(troubled, drill, model, told):
    record = record_of(troubled, f"small:{model}")
    drill.seen(record["reason"])
    assert record["status"] == "crashed"
    assert record["failure"]["rank"] == 1
    assert told in record["reason"]


@pytest.mark.drill("all ranks: os._exit(0)")
def test_ranks_that_all_leave_without_a_word_have_measured_nothing(troubled):
    record = record_of(troubled, "small:LeavesQuietly")
    assert record["status"] == "crashed"
    assert "code 0" in record["reason"]


@pytest.mark.drill("rank 1 hangs in its own code")
def test_a_hang_ends_at_the_deadline_with_the_stacks_in_the_log(run_suite, drill):
    finished = run_suite(suite("HangsInRankOne", limits="{step: 3}").replace("limits: {step: 30}\n", ""))
    record = finished.record("ddp")
    assert record["status"] == "hang"
    drill.noticed(record["wall_s"])
    drill.seen(record["reason"])
    assert record["failure"]["rank"] == 1, "both ranks are in the same step, but rank 0 waits for rank 1"
    assert "limits.step" in record["reason"]
    assert "rank 1 is in trouble (small.py:" in record["reason"]
    assert "in trouble" in record["failure"]["log"]


@pytest.mark.drill("torch can't allocate")
def test_running_out_of_memory_is_told_apart_from_a_crash(troubled):
    assert row_of(troubled, "OutOfMemory")["status"] == "oom_host"


@pytest.mark.drill("the loss is no number")
def test_a_loss_that_is_not_a_number_makes_the_trial_invalid_and_names_the_step(troubled):
    record = record_of(troubled, "small:NotANumber")
    assert record["status"] == "invalid_nan"
    assert "step 4" in record["reason"]


@pytest.mark.parametrize(("model", "told"), [("raises", "no such weights"), ("no_module", "nn.Module")])
def test_a_model_callable_that_fails_says_which_option_named_it(troubled, model, told):
    case = row_of(troubled, model)
    assert case["status"] == "prepare_failed"
    assert "model" in str(case["reason"])
    assert told in str(case["reason"])


def test_the_suite_goes_on_after_a_case_that_failed(run_suite):
    finished = run_suite(suite("RaisesInRankOne", "[single, ddp, fsdp]"))
    statuses = {case["strategy"]: case["status"] for case in finished.cases.values()}
    assert statuses == {"single": "measured", "ddp": "crashed", "fsdp": "crashed"}


@pytest.mark.drill("a rank leaves a child behind, in a session of its own")
def test_what_a_rank_has_started_does_not_outlive_its_trial(troubled):
    assert row_of(troubled, "LeavesAChildBehind")["status"] == "measured"
    assert alive(record_of(troubled, "small:LeavesAChildBehind")["run_id"]) == []


@pytest.mark.drill("rank 1: kill -9 after the timed steps")
def test_what_was_timed_stands_whatever_fails_after_it(troubled, drill):
    record = record_of(troubled, "small:KilledAfterTheWindow")
    drill.seen(record["reason"])
    assert record["status"] == "measured"
    assert record["values"]["tokens_per_s"] > 0 and len(record["samples"]["step_s"][1]) == 5
    assert record["reason"].startswith("incomplete: rank 1 in count 0: ") and "SIGKILL" in record["reason"]
    assert record["failure"]["rank"] == 1
    assert record["absent"]["comm_bytes"] == record["absent"]["grad_norm"] == record["reason"]


def test_a_metric_that_raises_in_a_rank_costs_its_own_numbers_alone(troubled):
    record = record_of(troubled, "small:LeavesAChildBehind")
    assert (record["status"], record["reason"]) == ("measured", "")
    assert "rank 1 in time: ZeroDivisionError" in record["absent"]["falters"]
    assert record["values"]["tokens_per_s"] > 0 and record["values"]["comm_bytes"] > 0


class Started:
    """A run that goes on, to be stopped from outside in the middle of a trial."""

    def __init__(self, folder: Path) -> None:
        file = folder / "suite.yaml"
        file.write_text(
            suite("HangsIfAsked", "[single, ddp]", limits="{step: 500}").replace("limits: {step: 30}\n", "")
        )
        self.out = folder / "out"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "distbench", "run", str(file), "--out", str(self.out)],
            cwd=MODELS,
            env={**os.environ, "SMALL_HANGS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._until(lambda: any(self.out.glob("*/trials/ddp-*/0/rank1.progress")))

    @property
    def folder(self) -> Path:
        (folder,) = self.out.iterdir()
        return folder

    @property
    def run_id(self) -> str:
        return self.folder.name.rpartition("-")[2]

    def _until(self, condition: Callable[[], bool], seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not happen in time"
            assert self.process.poll() is None or condition(), self.process.communicate()[0]
            time.sleep(0.05)

    def nobody_left(self) -> None:
        end = time.monotonic() + 20
        while alive(self.run_id):
            assert time.monotonic() < end, f"left behind: {alive(self.run_id)}"
            time.sleep(0.05)


@pytest.mark.drill("Ctrl-C in the middle of a trial on real ranks")
def test_ctrl_c_keeps_what_was_measured_renders_the_report_and_leaves_no_process(tmp_path, distbench):
    started = Started(tmp_path)
    started.process.send_signal(signal.SIGINT)
    output, _ = started.process.communicate(timeout=60)
    assert started.process.returncode == 130, output
    assert any(started.folder.glob("trials/single-*/0/record.json"))
    assert (started.folder / "report.html").is_file()
    assert "--resume" in output
    started.nobody_left()
    (stopped,) = started.folder.glob("trials/ddp-*/0/record.json")
    assert json.loads(stopped.read_text())["status"] == "cancelled"
    resumed = distbench("run", "--resume", str(started.folder), "--out", str(started.out))
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(stopped.read_text())["status"] == "measured"


@pytest.mark.drill("kill -9 of the command line, with real ranks")
def test_a_killed_command_line_leaves_no_process_and_can_be_resumed(tmp_path, distbench):
    started = Started(tmp_path)
    started.process.kill()
    started.process.communicate()
    started.nobody_left()
    (single,) = started.folder.glob("trials/single-*/0/record.json")
    before = single.read_text()
    resumed = distbench("run", "--resume", str(started.folder), "--out", str(started.out))
    assert single.read_text() == before, "what was measured is not measured again"
    assert resumed.returncode == 0, resumed.stderr
    assert any(started.folder.glob("trials/ddp-*/0/record.json"))


@pytest.mark.drill("SIGSTOP of the command line for longer than a step may take, then SIGCONT")
@pytest.mark.deep
def test_a_command_line_that_stood_still_goes_on(tmp_path):
    file = tmp_path / "suite.yaml"
    text = suite("Changed", limits="{step: 3}").replace("limits: {step: 30}\n", "")
    file.write_text(text.replace("steps: 3", "steps: 20"))
    process = subprocess.Popen(
        [sys.executable, "-m", "distbench", "run", str(file), "--out", str(tmp_path / "out")],
        cwd=MODELS,
        env={**os.environ, "SMALL_SLEEPS": "0.2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    end = time.monotonic() + 120
    while not any("time" in each.read_text() for each in tmp_path.glob("out/*/trials/*/0/rank*.progress")):
        assert time.monotonic() < end and process.poll() is None, "it did not happen in time"
        time.sleep(0.05)
    process.send_signal(signal.SIGSTOP)
    time.sleep(5)
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
