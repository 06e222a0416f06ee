"""Whole gates by the command line, whose trials are made up: what two series and two baselines come to."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distbench.cli import main
from distbench.gate.verdicts import CaseVerdict, GateResult, MetricFinding
from support.pretended_suites import pretended_suite
from support.repositories import git

SUITE = pretended_suite(
    measure="{steps: 3}",
    metrics="[steptime, throughput, memory, telemetry]",
    launcher="{pretend: {step_s: 0.1, values: {memory_peak: 1.0e+6, loss: 2.5, cpu_busy: 0.5}}}",
    strategies="[pretended]",
    gate="{efficiency: false}",
)
PRETEND = "launcher.pretend"

Gated = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def gated(tmp_path, monkeypatch, capsys) -> Gated:
    """Run a gate; return its exit code and its result."""
    monkeypatch.setenv("DISTBENCH_PLUGINS", str(Path(__file__).parents[2] / "plugins"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suite.yaml").write_text(SUITE)

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        code = main(["gate", "suite.yaml", "--out", "out", "--json", "--quiet", *arguments])
        told = capsys.readouterr()
        return code, json.loads(told.out or "null") or {"errors": told.err}

    return run


def verdict_words(result: dict[str, Any]) -> dict[str, str]:
    (case,) = result["cases"]
    return {finding["metric"]: finding["word"] for finding in case["findings"]}


def test_equal_arms_pass_with_one_series(gated, tmp_path):
    code, result = gated("--self-test")
    assert (code, result["word"]) == (0, "pass")
    assert verdict_words(result) == {"tokens_per_s": "pass", "peak_memory": "pass"}
    assert result["cases"][0]["first"] == []
    assert not list(tmp_path.glob("out/*/failures.json"))


@pytest.mark.parametrize(
    ("before", "metric", "word", "code"),
    [
        ("step_s=0.12", "tokens_per_s", "improved", 0),
        ("step_s=0.08", "tokens_per_s", "regressed", 1),
        ("values.memory_peak=1.1e+6", "peak_memory", "improved", 0),
        ("values.memory_peak=9.0e+5", "peak_memory", "regressed", 1),
    ],
)
def test_better_and_worse_take_a_second_series(gated, before, metric, word, code):
    done, result = gated("--set-baseline", f"{PRETEND}.{before}")
    assert (done, verdict_words(result)[metric]) == (code, word)
    (case,) = result["cases"]
    assert {finding["metric"]: finding["word"] for finding in case["first"]}[metric] == word
    assert "confirmed by a fresh series" in next(f["said"] for f in case["findings"] if f["metric"] == metric)


def test_a_model_that_learns_something_else_is_another_training_however_fast(gated):
    faster = ("--set-baseline", f"{PRETEND}.step_s=0.12", "--set-baseline", f"{PRETEND}.values.loss=1.1")
    code, result = gated(*faster)
    assert (code, result["word"]) == (1, "invalid")
    assert "trains differently: at step 1 the loss is 2.5, was 1.1" in result["cases"][0]["said"]
    code, result = gated(*faster, "--set", "gate.loss=ignored")
    assert (code, result["word"]) == (0, "improved")


MOVED_LOSSES = """
from dataclasses import dataclass
from distbench.core.columns import Column
from distbench.core.job import JobKind, JobSpec, PlannedTrial

@dataclass(frozen=True)
class Section:
    'Nothing to set.'

@dataclass(frozen=True)
class Moves(JobKind):
    'Makes up the loss of a training from moved weights.'
    name = folder = 'moves'
    section = Section
    columns = (Column('moved_loss', '', None, 'first', 'Loss of the first step.'),)

    def planned_trials(self, section, cases, machine):
        return []

    def perturbed_trials(self, section, cases):
        return [PlannedTrial(case, job=JobSpec(self.name)) for case in cases]
"""
MOVED_LOSSES_RESULTS = """
from dataclasses import dataclass
import numpy as np
from distbench.analysis.job_results import JobResults

@dataclass(frozen=True)
class MovesResults(JobResults):
    def perturbed_losses(self, records):
        return {each.case_id: [np.array([each.values['moved_loss']])] for each in records}
"""


@pytest.fixture
def moved_losses_gate(gated, tmp_path, monkeypatch) -> Gated:
    """A gate whose suite has a kind of job that moves weights."""
    kind, suite = tmp_path / "jobs" / "moves" / "__init__.py", tmp_path / "suite.yaml"
    kind.parent.mkdir(parents=True)
    kind.write_text(MOVED_LOSSES)
    kind.with_name("results.py").write_text(MOVED_LOSSES_RESULTS)
    monkeypatch.setenv("DISTBENCH_PLUGINS", f"{tmp_path}:{Path(__file__).parents[2] / 'plugins'}")
    text = SUITE.replace("cpu_busy: 0.5}", f"cpu_busy: 0.5, moved_loss: 2.5}}, log: {tmp_path / 'log'}")
    suite.write_text(f"{text}moves: true\nsensitivity: {{trainings: 0}}\n")
    return gated


def trials(folder: Path) -> int:
    return sum(line.startswith("trial") for line in (folder / "log").read_text().splitlines())


def test_losses_that_part_no_further_than_rounding_leads_the_baseline_are_not_told_apart(
    moved_losses_gate, tmp_path
):
    lower = {"loss": 2.45, "moved_loss": 2.47}
    arguments = [f"--set-baseline={PRETEND}.values.{name}={loss}" for name, loss in lower.items()]
    code, result = moved_losses_gate(*arguments)
    assert (code, verdict_words(result)["trial"]) == (3, "inconclusive")
    assert "amplifies rounding" in result["cases"][0]["said"]
    (stored,) = Path(result["folder"]).glob("*/moves/*/0/record.json")
    assert stored.is_relative_to(Path(result["folder"]) / "baseline")
    made = trials(tmp_path)
    code, again = moved_losses_gate(*arguments, "--resume", result["folder"])
    assert (code, again["cases"][0]["findings"]) == (3, result["cases"][0]["findings"])
    assert trials(tmp_path) - made == 2, "only the two that warm up"


def test_no_rounding_is_tried_where_the_losses_are_the_same(moved_losses_gate, tmp_path):
    code, result = moved_losses_gate("--self-test")
    assert (code, result["word"]) == (0, "pass")
    assert not list(tmp_path.glob("out/*/*/moves"))


def test_an_older_baseline_is_compared_too_by_what_creeps(gated, tmp_path):
    suite = tmp_path / "suite.yaml"
    git(tmp_path, "init", "-q", "-b", "main")
    for name in ("pinned", "main"):
        suite.write_text(f"description: that of {name}\n{SUITE}")
        git(tmp_path, "add", "suite.yaml")
        git(tmp_path, "commit", "-qm", name)
        if name == "pinned":
            git(tmp_path, "tag", "pinned")
    suite.write_text(f"description: mine\n{SUITE}")
    code, result = gated("--baseline", "main", "--since", "pinned")
    assert code == 0, result
    assert result["baseline"].startswith("main (") and result["since"]["baseline"].startswith("pinned (")
    assert verdict_words(result["since"]) == {"tokens_per_s": "pass", "peak_memory": "pass"}


@pytest.mark.parametrize("alone", [("--self-test",), ("--baseline", "main", "--dry-run")])
def test_an_older_baseline_alone_is_given_as_the_baseline(gated, alone):
    code, result = gated(*alone, "--since", "pinned")
    assert code == 2
    assert "give it as --baseline" in result["errors"]


@pytest.mark.parametrize(("word", "code"), [("pass", 0), ("regressed", 1), ("inconclusive", 3)])
def test_what_crept_in_since_an_older_baseline_fails_the_gate(word, code):
    cases = [
        (CaseVerdict("ddp", "ddp", 2, (MetricFinding("tokens_per_s", each, ""),)),) for each in ("pass", word)
    ]
    older = GateResult("b", "tiny", "pinned", "mine", cases[1])
    assert GateResult("a", "tiny", "main", "mine", cases[0], since=older).exit_code() == code
