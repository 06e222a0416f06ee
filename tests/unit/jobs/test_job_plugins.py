"""Adding a kind of job is one new folder and no edit: ``tests/plugins/jobs/tally``."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.verdict_sentences import bad_verdict_sentences
from distbench.core import job, registry
from distbench.core.case import PluginChoice
from distbench.gate.case_verdict import required_findings
from distbench.record.run_folder import Run
from distbench.report.overview import overview_text
from distbench.report.run_export import run_json
from distbench.suite.gate import parse_gate
from support.records import case, info, job_of, measured
from support.runs import OF_OUR_OWN, PLUGINS, QUICK
from support.suites import write_suite

TALLIED = QUICK.replace("trials: 1", "trials: 0") + "strategies: [ddp]\ntally: {steps: 3}\n"


@pytest.fixture
def suite(tmp_path) -> Callable[[str], str]:
    def write(text: str) -> str:
        file = write_suite(tmp_path, text, "mine.yaml")
        return str(file)

    return write


def test_the_kinds_of_job_have_words_and_folders_of_their_own():
    words = [kind.name for kind in job.job_kinds()]
    assert {"measure", "check", "checkpoint", "converge"} <= set(words)
    assert words[-1] == "measure", "what is measured comes last"
    assert len({kind.folder for kind in job.job_kinds()}) == len(words) == len(set(words))


@pytest.mark.train
def test_a_plan_has_the_trials_of_a_kind_that_is_a_folder(distbench, suite):
    text = TALLIED.replace(*OF_OUR_OWN)
    planned = json.loads(distbench("plan", suite(text), "--json").stdout)
    assert [trial["job"] for trial in planned["trials"]] == ["tally"]
    assert planned["suite"]["tally"] == {"steps": 3}
    assert planned["suite"]["check"] is None
    assert "1 tally trial" in distbench("plan", suite(text)).stdout


@pytest.mark.parametrize(
    ("section", "place"),
    [
        ("tally: {steps: 0}", "tally.steps = 0: must be at least 1"),
        ("tally: {stpes: 3}", "tally.stpes = 3: unknown key"),
        ("tally: often", "tally = 'often': "),
        ("talyl: true", "talyl = true: unknown key; did you mean 'tally'?"),
    ],
)
def test_a_mistake_in_its_section_is_named(distbench, suite, section, place):
    done = distbench("plan", suite(TALLIED.replace("tally: {steps: 3}", section)))
    assert done.returncode == 2
    assert place in done.stderr


def test_it_may_be_switched_on_and_off_from_the_command_line(distbench, suite):
    off = TALLIED.replace("tally: {steps: 3}", "tally: false")
    assert distbench("plan", suite(off)).returncode == 2, "nothing to run"
    done = distbench("plan", suite(off), "--set", "tally=true", "--json")
    assert json.loads(done.stdout)["suite"]["tally"] == {"steps": 2}


def test_options_of_a_kind_that_is_not_installed_keep_what_all_kinds_share():
    plain = {"kind": "gone", "options": {"role": "case", "of": "1234567890", "shards": 3}}
    read = job.JobSpec.from_json(plain, "record.json")
    assert (read.kind, read.options) == ("gone", job.JobOptions(role="case", of="1234567890"))


def test_a_kind_keeps_its_options_through_json():
    kinds = job.job_kinds()
    assert kinds
    for kind in kinds:
        made = job.JobSpec(kind.name, kind.options(role="reference", of="a", reference="b"))
        assert job.JobSpec.from_json(json.loads(json.dumps(made.to_json())), "record.json") == made
        assert made.provided_reference == "b"


def test_two_plugins_of_one_word_are_refused(distbench, suite, tmp_path):
    source = Path(registry.__file__).parents[2] / "tests" / "plugins" / "jobs" / "tally" / "__init__.py"
    twin = tmp_path / "jobs" / "twin" / "__init__.py"
    twin.parent.mkdir(parents=True)
    twin.write_text(source.read_text())
    done = distbench("plan", suite(TALLIED), DISTBENCH_PLUGINS=f"{tmp_path}:{source.parents[2]}")
    assert done.returncode == 2
    assert "'tally'" in done.stderr


@pytest.mark.parametrize(
    ("steps", "gravity", "finding"), [(6, "ok", "pass"), (5, "bad", "invalid"), (None, None, "missing")]
)
def test_its_verdict_is_shown_gated_and_decides_the_exit_code(steps, gravity, finding, monkeypatch):
    monkeypatch.setenv("DISTBENCH_PLUGINS", PLUGINS)
    ddp = case("ddp")
    tallied = [] if steps is None else [replace(measured(ddp, tallied_steps=steps), job=job_of("tally"))]
    of = info(ddp)
    run = RunAnalysis(replace(of, suite={**of.suite, "tally": {"steps": 3}}), tallied)
    (row,) = run.cases
    (shown,) = run_json(run)["cases"]
    assert {kind: verdict["gravity"] for kind, verdict in shown["verdicts"].items()} == (
        {"tally": gravity} if gravity else {}
    )
    rules, mistakes = parse_gate({"tally": "required"})
    assert rules is not None and not mistakes
    (judged,) = required_findings(row, rules)
    assert (judged.metric, judged.word) == ("tally", finding)
    assert bool(bad_verdict_sentences(run)) == (gravity == "bad"), "what ends a run with exit code 1"
    assert ("5 of 6 steps" in overview_text(run)) == (gravity == "bad")


@pytest.mark.train
def test_it_is_run_stored_in_its_folder_and_not_run_again(run_suite, distbench, monkeypatch):
    monkeypatch.setenv("DISTBENCH_PLUGINS", PLUGINS)
    finished = run_suite(TALLIED)
    assert finished.code == 0, finished.errors
    run = Run(finished.folder)
    (record,) = run.records()
    assert record.status == "measured", record.reason
    assert record.job.options.to_json() == {"role": "case", "steps": 3}
    assert (record.values["tallied_steps"], record.columns["tallied_steps"]["metric"]) == (6, "tally")
    assert [row["step"] for row in record.tables["tally_curve"] if row["rank"] == 0] == [0, 1, 2]
    shown = distbench("show", str(finished.folder), "--view", "tally", "--json")
    assert [row["tallied_steps"] for row in json.loads(shown.stdout)["rows"]] == [6]
    (file,) = finished.folder.glob("tallies/*/0/record.json")
    written = file.stat().st_mtime_ns
    assert distbench("run", "--resume", str(finished.folder)).returncode == 0
    assert file.stat().st_mtime_ns == written
    assert registry.create_plugin("strategies", PluginChoice("ddp")).engine_class in json.dumps(
        record.effective
    )
