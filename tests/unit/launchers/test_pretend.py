"""The launcher that starts nothing: a suite can be tried with it, and its numbers pass for no measurement."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from distbench import plan
from distbench.cli import main
from distbench.core.machine import Machine
from distbench.suite import load_suite
from support.pretended_suites import pretended_suite
from support.suites import write_suite

SUITE = pretended_suite(
    measure="{steps: 3, trials: 2}",
    metrics="[steptime, throughput, telemetry]",
    launcher="{pretend: {values: {cpu_busy: 0.5}}}",
    strategies="[STRATEGY]",
)


@pytest.fixture
def pretended_run(tmp_path, monkeypatch, capsys):
    """Run a suite of one strategy and return its case."""

    monkeypatch.setenv("DISTBENCH_PLUGINS", str(Path(__file__).parents[2] / "plugins"))

    def run(strategy: str, *arguments: str) -> dict[str, Any]:
        suite = write_suite(tmp_path, SUITE.replace("STRATEGY", strategy))
        main(["run", str(suite), "--out", str(tmp_path / "out"), "--json", "--quiet", *arguments])
        (case,) = json.loads(capsys.readouterr().out)["cases"]
        return dict(case)

    return run


def test_a_pretended_case_is_measured_and_says_so_by_its_name(pretended_run, tmp_path):
    case = pretended_run("pretended")
    assert (case["strategy"], case["status"], case["degraded"]) == ("pretended", "measured", "")
    assert case["values"]["step_s"]["trials"] == pytest.approx([0.1, 0.101])
    records = [json.loads(file.read_text()) for file in tmp_path.glob("out/*/trials/*/*/record.json")]
    assert [record["environment"]["pretended"] for record in records] == [True, True]


BROKEN = """
from dataclasses import dataclass
from distbench.metrics.base import Column, Metric, Sampler

class Fails(Sampler):
    def stop(self):
        raise OSError("the sensor is gone")

@dataclass(frozen=True)
class Broken(Metric):
    columns = (Column("warmth", "", None, "mean", "What a sensor shows."),)

    def sampler(self, case):
        return Fails()
"""


def test_a_sampler_that_fails_costs_its_own_numbers_alone(pretended_run, tmp_path, monkeypatch):
    (tmp_path / "more" / "metrics").mkdir(parents=True)
    (tmp_path / "more" / "metrics" / "broken.py").write_text(BROKEN)
    monkeypatch.setenv("DISTBENCH_PLUGINS", str(tmp_path / "more"), prepend=os.pathsep)
    changes = ("metrics=[steptime, throughput, broken]", "launcher={faulty: {file: none, here: true}}")
    case = pretended_run("pretended", *(word for change in changes for word in ("--set", change)))
    assert case["status"] == "measured"
    assert case["values"]["tokens_per_s"]["trials"]
    assert case["absent"]["warmth"] == "the sampler of metric broken: OSError: the sensor is gone"


@pytest.mark.train
def test_numbers_made_up_for_a_real_strategy_are_kept_out_of_comparisons(pretended_run):
    case = pretended_run("ddp")
    assert case["status"] == "measured"
    assert case["degraded_trials"] == case["trials"] == 2 and "pretend" in case["degraded"]


@pytest.mark.parametrize(("does", "status"), [("raises", "crashed"), ("lacks", "unsupported")])
def test_what_may_become_of_a_trial_can_be_tried(pretended_run, does, status):
    assert pretended_run(f"{{pretended: {{does: {does}}}}}")["status"] == status


def test_what_nothing_can_be_made_up_for_is_refused_with_the_reason(pretended_run, tmp_path):
    pretended_run("pretended", "--check")
    records = [json.loads(file.read_text()) for file in tmp_path.glob("out/*/checks/*/*/record.json")]
    assert {record["status"] for record in records} == {"unsupported"}


LARGE_CLUSTER = """
from dataclasses import dataclass
from distbench.core.machine import Machine
from distbench.launchers.base import Launcher

@dataclass(frozen=True)
class Farm(Launcher):
    def machine(self, device):
        return Machine("cuda", 16, {"torch": "2.13.0"}, False, True, cores=32, nodes=2)

    commands = open_session = None
"""


def test_a_plan_counts_the_devices_of_its_launcher(tmp_path, monkeypatch):
    (tmp_path / "launchers").mkdir()
    (tmp_path / "launchers" / "farm.py").write_text(LARGE_CLUSTER)
    monkeypatch.setenv("DISTBENCH_PLUGINS", str(tmp_path))
    file = tmp_path / "suite.yaml"
    text = SUITE.replace("STRATEGY", "ddp").replace("{pretend: {values: {cpu_busy: 0.5}}}", "farm")
    file.write_text(text.replace("[2]", "auto").replace("size: 8", "size: 16"))
    cases = [item.case for item in plan.make_plan(load_suite(file)).cases]
    assert [case.world_size for case in cases] == [1, 2, 4, 8, 16]
    assert {(case.device, case.threads) for case in cases} == {("cuda", 4)}
    here = Machine("cpu", 2, {"torch": "2.13.0"}, False, True, cores=2)
    assert [item.case.world_size for item in plan.make_plan(load_suite(file), here).cases] == [1, 2]
