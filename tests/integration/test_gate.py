"""The gate on real processes: what is planted in one arm is found, and nothing else."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from distbench.record import SECOND_SERIES_START
from support.leftover_processes import alive
from support.runs import MODELS, call, call_outside

SUITE = """
workload: {user: {model: "small:Changed", length: 32}}
data: text
batch: {global_batch_size: 8}
strategies: [{ddp: {bucket_cap_mb: 25}}]
world_sizes: [2]
measure: {warmup: 1, steps: 2, profile_steps: 1}
limits: {step: 30}
gate: {tokens_per_s: false, efficiency: false, peak_memory: false}
launcher: kept
"""
# steps that mostly sleep, and what a machine that others use can tell of them in a few pairs
PACE = SUITE.replace("tokens_per_s: false", "tokens_per_s: 100%, min_pairs: 3, max_pairs: 6")
# where processes are what is tested, and not what is made of them
OWN_PROCESSES, OWN_PACE = (text.replace("launcher: kept\n", "") for text in (SUITE, PACE))
STEADY, SLOWER = "SMALL_SLEEPS=0.06", "SMALL_SLEEPS=0.24"


@dataclass(frozen=True)
class Gated:
    """What a ``distbench gate`` left."""

    code: int
    errors: str
    result: dict[str, Any]

    @property
    def findings(self) -> dict[str, str]:
        """Word of each number of the only case."""
        (case,) = self.result["cases"]
        return {one["metric"]: one["word"] for one in case["findings"]}


def gate(folder: Path, *arguments: str, suite: str = SUITE, **variables: str) -> Gated:
    file = folder / "suite.yaml"
    file.write_text(suite)
    done = call("gate", str(file), "--out", str(folder / "out"), "--json", *arguments, **variables)
    return Gated(done.returncode, done.stderr, json.loads(done.stdout or "null"))


def test_two_equal_arms_pass(tmp_path):
    text = PACE.replace("peak_memory: false", "peak_memory: 1%")
    done = gate(tmp_path, "--self-test", suite=text, SMALL_SLEEPS="0.1")
    assert done.code == 0, done.errors
    assert done.findings == dict.fromkeys(("tokens_per_s", "peak_memory", "comm_bytes", "comm_calls"), "pass")
    folder = Path(done.result["folder"])
    assert json.loads((folder / "gate.json").read_text()) == done.result
    for arm in ("baseline", "candidate"):
        # each arm is a run like any other, without the trial that warmed it up
        shown = call("show", str(folder / arm), "--json")
        (case,) = json.loads(shown.stdout)["cases"]
        assert case["trials"] == done.result["cases"][0]["findings"][0]["pairs"]
    assert not list(folder.glob("*/scratch"))


def test_a_model_whose_logits_are_one_percent_larger_is_another_training(tmp_path):
    """Same parameters, bytes and calls, and each arm is equivalent to its own reference."""
    done = gate(tmp_path, "--env", "SMALL_SCALES=1.01")
    assert (done.code, done.result["word"]) == (1, "invalid")
    assert "trains differently: at step 1 " in done.result["cases"][0]["said"]


@pytest.mark.deep
def test_busy_neighbours_make_no_regression_of_equal_arms(tmp_path):
    """FSDP2 on gloo, whose peak memory has two levels, beside three processes that never rest."""
    text = OWN_PACE.replace("{ddp: {bucket_cap_mb: 25}}", "fsdp").replace("memory: false", "memory: 1%")
    text = text.replace("tokens_per_s: 100%", "tokens_per_s: 5%")
    spin = [sys.executable, "-c", "while True: pass"]
    neighbours = [subprocess.Popen(spin) for _ in range(3)]
    try:
        words = [set(gate(tmp_path, "--self-test", suite=text).findings.values()) for _ in range(3)]
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
    assert not set.union(*words) & {"regressed", "invalid", "broken"}


def test_a_slower_model_is_flagged_and_confirmed_by_processes_of_their_own(tmp_path):
    done = gate(tmp_path, "--env", SLOWER, "--env-baseline", STEADY, suite=OWN_PACE)
    assert done.code == 1
    (case,) = done.result["cases"]
    pace = next(one for one in case["findings"] if one["metric"] == "tokens_per_s")
    assert pace["word"] == "regressed"
    assert "confirmed by a fresh series" in pace["said"]
    assert 1 < pace["low"] < pace["ratio"] < pace["high"]
    assert case["first"], "what the first series said is kept"
    # a sleep runs no operation, so it is no part of the forward pass
    assert "in idle time (nothing runs)" in case["cause"]
    rounds = sorted(int(file.parent.name) for file in tmp_path.glob("out/*/candidate/trials/*/*/record.json"))
    first = [number for number in rounds if number < SECOND_SERIES_START]
    assert first == list(range(len(first)))
    assert [number - SECOND_SERIES_START for number in rounds[len(first) :]] == list(range(pace["pairs"]))


@pytest.mark.deep
def test_the_same_in_the_baseline_is_an_improvement(tmp_path):
    done = gate(tmp_path, "--env", STEADY, "--env-baseline", SLOWER, suite=PACE)
    assert done.code == 0
    assert done.findings["tokens_per_s"] == "improved"


def test_collectives_are_counted_exactly_between_two_values(tmp_path):
    report = tmp_path / "junit.xml"
    smaller = "strategies[0].ddp.bucket_cap_mb"
    arguments = ("--set", f"{smaller}=0.001", "--set-baseline", f"{smaller}=25", "--junit", str(report))
    done = gate(tmp_path, *arguments)
    assert done.code == 1
    assert done.findings["comm_calls"] == "regressed"
    assert done.findings["comm_bytes"] == "pass"
    (suite,) = ElementTree.parse(report).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")


@pytest.mark.parametrize(
    ("option", "variable", "code", "word", "told"),
    [
        ("--env", "SMALL_RAISES=1", 1, "broken", "failed twice here (crashed: "),
        pytest.param(
            "--env-baseline",
            "SMALL_RAISES=1",
            5,
            "incomparable",
            "in the baseline (crashed: ",
            marks=pytest.mark.deep,
        ),
        pytest.param("--env", "SMALL_BREAKS_DOWN=1", 1, "invalid", "invalid_nan", marks=pytest.mark.deep),
    ],
)
def test_an_arm_that_does_not_train(tmp_path, option, variable, code, word, told):
    done = gate(tmp_path, option, variable)
    assert (done.code, done.result["word"]) == (code, word)
    assert told in done.result["cases"][0]["said"]


@pytest.mark.deep
def test_scaling_is_gated_together_with_the_pace(tmp_path):
    text = PACE.replace("efficiency: false", "efficiency: 100%").replace("sizes: [2]", "sizes: [1, 2]")
    done = gate(tmp_path, "--self-test", suite=text, SMALL_SLEEPS="0.1")
    assert done.code == 0, done.errors
    one, two = ({each["metric"]: each for each in case["findings"]} for case in done.result["cases"])
    assert "efficiency" not in one
    assert two["efficiency"]["pairs"] >= 3


@pytest.mark.deep
def test_an_efficiency_that_can_not_be_told_is_not_passed_over(tmp_path):
    done = gate(tmp_path, "--self-test", suite=SUITE.replace("efficiency: false", "efficiency: 50%"))
    assert "efficiency" not in done.findings
    (note,) = done.result["notes"]
    assert "efficiency" in note
    assert "ddp/ws2/mb4/fp32" in note


def test_equivalence_may_be_required(tmp_path):
    text = SUITE.replace("gate: {", "check: {steps: 2, perturbed: 4}\ngate: {equivalence: required, ")
    done = gate(tmp_path, "--self-test", suite=text)
    assert done.code == 0, done.errors
    assert done.findings["equivalence"] == "pass"


@pytest.mark.deep
def test_a_required_check_trains_a_case_that_differs_a_second_time(tmp_path):
    checks = "check: {steps: 3, perturbed: 4, fp64: false}\ngate: {equivalence: required, "
    text = SUITE.replace("gate: {", checks).replace(
        "{ddp: {bucket_cap_mb: 25}}", "{planted: {bug: rare-event}}"
    )
    done = gate(tmp_path, "--self-test", suite=text)
    # an honest training may have an event that no perturbed one has: no mistake is shown, and nothing passes
    assert done.findings["equivalence"] == "missing"
    (finding,) = [each for each in done.result["cases"][0]["findings"] if each["metric"] == "equivalence"]
    assert "a second one, from weights perturbed by rounding, does not differ" in finding["said"]


def test_other_work_is_not_compared(tmp_path):
    done = gate(tmp_path, "--set-baseline", "batch.global_batch_size=4")
    assert done.code == 5
    assert "batch.global_batch_size" in done.result["cases"][0]["said"]


@pytest.fixture
def repository(tmp_path) -> Path:
    """Make a repository whose first commit trains, and whose files may then be changed."""
    folder = tmp_path / "repository"
    folder.mkdir()
    shutil.copy(MODELS / "small.py", folder)
    (folder / "suite.yaml").write_text(OWN_PROCESSES)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "It trains")
    return folder


def git(folder: Path, *words: str) -> str:
    named = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    return subprocess.run(
        ["git", *named, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def gate_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "distbench", "gate", "suite.yaml", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_change_of_code_is_held_against_its_revision(repository):
    model = repository / "small.py"
    model.write_text(
        model.read_text().replace("in os.environ else logits", "in os.environ else 1.01 * logits")
    )
    done = gate_in(repository, "--baseline", "main", "--json")
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert result["baseline"].startswith("main (")
    assert result["cases"][0]["word"] == "invalid"
    assert "trains differently" in result["cases"][0]["said"]
    assert git(repository, "worktree", "list").count("\n") == 1, "the checkout is taken away again"
    assert git(repository, "status", "--short", "--untracked-files=no").split() == ["M", "small.py"]


AGAINST_MAIN = ("gate", "suite.yaml", "--baseline", "main", "--json", "--out", "../out")


def gate_pace(repository: Path) -> None:
    """Commit a suite that gates times and memory, of trials from the fork servers of the session."""
    (repository / "suite.yaml").write_text(PACE.replace("peak_memory: false", "peak_memory: 1%"))
    git(repository, "commit", "-qam", "Times and memory are gated")


def test_a_change_that_no_rank_imports_passes_after_one_trial_of_each_arm(repository):
    gate_pace(repository)
    (repository / "NOTES.md").write_text("How it trains.")
    (repository / "test_small.py").write_text("import small")
    done = call(*AGAINST_MAIN, folder=repository)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (case,) = result["cases"]
    words = {one["metric"]: (one["word"], one["pairs"]) for one in case["findings"]}
    assert words == dict.fromkeys(("trial", "comm_bytes", "comm_calls"), ("pass", 1))
    told = "2 files that no rank imports (NOTES.md, test_small.py) differ from main ("
    assert told in case["findings"][0]["said"] and told in result["notes"][0]
    for arm in ("baseline", "candidate"):
        (record,) = (Path(result["folder"]) / arm).glob("trials/*/*/record.json")
        assert len(json.loads(record.read_text())["code"]) == 2, "of each rank"
    done = call(*AGAINST_MAIN, "--always", "--minutes", "0.001", folder=repository)
    assert done.returncode == 3, done.stderr
    assert "no pair of trials finished" in json.loads(done.stdout)["cases"][0]["said"]


@pytest.mark.deep
def test_a_change_of_a_comment_that_ranks_import_is_timed(repository):
    gate_pace(repository)
    model = repository / "small.py"
    model.write_text(f"{model.read_text()}\n# Changed.\n")
    done = call(*AGAINST_MAIN, "--minutes", "0.001", folder=repository)
    assert done.returncode == 3, done.stderr
    assert "no pair of trials finished" in json.loads(done.stdout)["cases"][0]["said"]


def test_two_arms_of_several_models_that_are_the_same_are_refused(repository):
    suite = repository / "suite.yaml"
    suite.write_text(
        OWN_PROCESSES.replace('{user: {model: "small:Changed", length: 32}}', "[mlp, transformer]")
    )
    suite.write_text(suite.read_text().replace("data: text\n", ""))
    git(repository, "commit", "-qam", "Two models of distbench")
    done = gate_in(repository, "--baseline", "main")
    assert done.returncode == 2, done.stderr
    assert "both arms would be the same: the suite has not changed since" in " ".join(done.stderr.split())


@pytest.mark.deep
def test_the_suite_of_a_revision_says_what_its_arm_trains(repository):
    suite = repository / "suite.yaml"
    suite.write_text(suite.read_text().replace("bucket_cap_mb: 25}}", "bucket_cap_mb: 0.001}}, fsdp"))
    done = gate_in(repository, "--baseline", "main", "--json")
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    (case,) = result["cases"]
    calls = next(one for one in case["findings"] if one["metric"] == "comm_calls")
    assert (calls["word"], calls["baseline"]) == ("regressed", 1), "its own bucket, not the candidate's"
    assert result["skipped"] == {"fsdp/ws2/mb4/fp32": "new: the baseline has no such case"}


@pytest.mark.deep
def test_another_python_environment_runs_this_harness(tmp_path):
    done = gate(tmp_path, "--baseline", sys.prefix, suite=OWN_PROCESSES)
    assert done.code == 0, done.errors
    assert done.result["environment"] == {}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "gate: no baseline"),
        (("--self-test", "--env", "A=1"), "--self-test compares the suite with itself"),
        (("--baseline", "no-such-thing"), "--baseline no-such-thing: neither a Python environment"),
        (("--baseline", "/bin/true"), "--baseline /bin/true: its Python"),
        (("--baseline", "/bin/false"), "--baseline /bin/false: its Python can't run trials"),
        (
            ("--baseline", sys.prefix, "--set", "launcher={ssh: {hosts: [localhost]}}"),
            "launcher ssh starts ranks with the Python of its nodes",
        ),
        (("--env-baseline", "A"), "--env-baseline 'A': expected NAME=VALUE"),
        (("--env", "A"), "--env 'A': expected NAME=VALUE"),
        (("--self-test", "--inconclusive", "maybe"), "--inconclusive = 'maybe'"),
        (("--self-test", "--set", "gate.tokens_per_s=0"), "gate.tokens_per_s = 0: must be above 0"),
        (("--self-test", "--max-pairs", "0"), "--max-pairs 0: gate.max_pairs = 0: must be at least 3"),
        (("--self-test", "--minutes", "0"), "--minutes 0.0: gate.minutes = 0.0: must be above 0"),
        (("--set-baseline", "measure.steps=x"), "--set-baseline measure.steps=x: measure.steps = 'x'"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(tmp_path, arguments, told):
    done = gate(tmp_path, *arguments)
    assert done.code == 2
    assert told in done.errors
    assert not (tmp_path / "out").exists()


@pytest.mark.drill("Ctrl-C of a gate on real ranks")
def test_a_stopped_gate_keeps_what_it_has_and_leaves_no_process(tmp_path):
    (tmp_path / "suite.yaml").write_text(
        OWN_PACE.replace("max_pairs: 6", "max_pairs: 100").replace("100%", "1%")
    )
    arguments = [
        "gate",
        str(tmp_path / "suite.yaml"),
        "--self-test",
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "distbench", *arguments],
        cwd=MODELS,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=dict(os.environ),
    )
    end = time.monotonic() + 120
    while not list(tmp_path.glob("out/*/baseline/trials/*/1/record.json")) and time.monotonic() < end:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    result = json.loads(told)
    assert result["state"] == "interrupted"
    runs = [json.loads(file.read_text()) for file in tmp_path.glob("out/*/*/run.json")]
    assert {run["state"] for run in runs} == {"interrupted"}
    assert not [pid for run in runs for pid in alive(run["run_id"])]

    made = {file: file.stat().st_mtime_ns for file in tmp_path.glob("out/*/*/trials/*/[01]/record.json")}
    wider = ("--set", "gate.tokens_per_s=100%", "--set", "gate.max_pairs=3")
    again = call_outside(*arguments, "--resume", result["folder"], *wider)
    assert again.returncode in (0, 3), again.stderr
    assert json.loads(again.stdout)["state"] == "finished"
    assert len(made) == 4
    assert {file: file.stat().st_mtime_ns for file in made} == made, "what was made is not made again"


def test_a_gate_goes_on_as_it_was_begun_or_not_at_all(tmp_path):
    done = gate(tmp_path, "--self-test")
    for change, told in (
        (("--self-test", "--set", "measure.steps=3"), "another suite"),
        (("--env", "A=1"), "compares other arms"),
    ):
        other = gate(tmp_path, *change, "--resume", done.result["folder"])
        assert other.code == 2
        assert told in other.errors
    assert "arms.json is missing" in gate(tmp_path, "--self-test", "--resume", str(tmp_path)).errors


def test_what_a_machine_resolves_is_measured_kept_and_held_against_the_rules(tmp_path):
    cache = tmp_path / "cache"
    file = tmp_path / "suite.yaml"
    file.write_text(PACE)
    # the spread is measured also of what is not gated
    ungated = ("--set", "gate.tokens_per_s=false", "--pairs", "3")
    done = call("calibrate", str(file), *ungated, "--out", str(tmp_path / "out"), DISTBENCH_CACHE=str(cache))
    assert done.returncode == 0, done.stderr
    assert "resolves" in done.stdout
    (kept,) = cache.glob("calibration/*.json")
    (told,) = json.loads(kept.read_text())["cases"].values()
    assert told["deviations"]["tokens_per_s"] > 0
    blind = gate(
        tmp_path, "--self-test", "--set", "gate.tokens_per_s=0.0001%", suite=PACE, DISTBENCH_CACHE=str(cache)
    )
    assert blind.code == 2
    assert "gate.tokens_per_s = 0.0001%: " in blind.errors
    dry = call("gate", str(file), "--self-test", "--dry-run", DISTBENCH_CACHE=str(cache))
    assert dry.returncode == 0
    assert re.search(r"Total: \d+ to \d+ trials of 1 case, less than a minute\. 3 to 6 pairs", dry.stdout)


EXAMPLE = Path(__file__).parents[2] / "docs" / "ci" / "example" / "try.sh"


@pytest.mark.parametrize(
    ("change", "regressed"),
    [
        pytest.param("extra-all-reduce", {"comm_bytes", "comm_calls"}, marks=pytest.mark.deep),
        pytest.param("harmless", set(), marks=pytest.mark.deep),
        pytest.param("slower-kernel", {"peak_memory"}, marks=pytest.mark.deep),
        pytest.param("smaller-bucket", {"comm_calls"}, marks=pytest.mark.deep),
    ],
)
def test_the_example_is_stopped_where_it_says_so(tmp_path, change, regressed):
    """By what is counted, for the pace of a machine that others use tells little in so few trials."""
    counted = ["--set", "gate.tokens_per_s=false", "--set", "gate.efficiency=false"]
    if "peak_memory" not in regressed:
        counted += ["--set", "gate.peak_memory=false"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [EXAMPLE, change, *counted, "--world-sizes", "2", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == bool(regressed), done.stderr
    (case,) = json.loads(done.stdout)["cases"]
    assert {one["metric"] for one in case["findings"] if one["word"] == "regressed"} == regressed
