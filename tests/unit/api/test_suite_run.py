"""A suite that is run from Python: the same run as that of the command line, and the same messages."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import distbench as db
from distbench.core.registry import PLUGIN_PATH_VARIABLE
from support.suites import write_suite

TESTS = Path(__file__).parents[2]
SAMPLE = TESTS.parent / "reports" / "sample"
SUITE = {
    "name": "tiny",
    "workload": "mlp",
    "batch": {"global_batch_size": 8},
    "strategies": ["pretended", {"pretended": {"does": "also-works"}}],
    "world_sizes": [1, 2],
    "launcher": {"pretend": {"step_s": 0.1}},
    "measure": {"trials": 2},
}


@pytest.fixture(autouse=True)
def plugins(monkeypatch) -> None:
    """A strategy that needs no torch."""
    monkeypatch.setenv(PLUGIN_PATH_VARIABLE, str(TESTS / "plugins"))


@pytest.fixture
def start(tmp_path) -> Callable[..., db.Run]:
    def run(suite: Any = SUITE, **overrides: Any) -> db.Run:
        return db.run(suite, out=tmp_path / "out", quiet=True, **overrides)

    return run


def test_a_mapping_is_run_and_stored_as_the_suite_that_it_is(start, command):
    run = start()
    cases = [(row.case.label, row.case.world_size) for row in run.cases]
    assert sorted(cases) == [
        (label, size) for label in ("pretended", "pretended+also-works") for size in (1, 2)
    ]
    assert {len(row.values["step_s"].trials) for row in run.cases} == {2}
    assert YAML(typ="safe").load((run.folder / "suite.yaml").read_text()) == SUITE
    assert (run.folder / "report.html").is_file()
    assert command("show", str(run.folder))[0] == 0


def test_overrides_are_stored_as_the_options_that_repeat_them(start, tmp_path, command):
    file = write_suite(tmp_path, json.dumps({**SUITE, "check": {"steps": 3}}), "mine.yaml")
    run = start(file, only=["pretended"], seed=7, check=True, **{"measure.trials": 1})
    assert [row.case.world_size for row in run.cases] == [1, 2]
    # a section that the suite has is turned on, and not replaced
    assert (run.analysis.info.suite["seed"], run.analysis.info.suite["check"]["steps"]) == (7, 3)
    again = run.analysis.info.command
    settings = ["--set", 'only=["pretended"]', "--set", "seed=7", "--set", "measure.trials=1"]
    assert again == ["distbench", "run", str(file), *settings, "--check"]
    assert command(*again[1:], "--out", str(tmp_path / "out"), "--quiet")[0] in (0, 1, 3)
    (other,) = [each for each in (tmp_path / "out").iterdir() if each != run.folder]
    assert [row.case.id for row in db.load(other).cases] == [row.case.id for row in run.cases]


def test_numbers_of_numpy_and_paths_are_values_of_a_suite(start):
    import numpy as np

    batch = {"global_batch_size": np.int64(16)}
    suite = {**SUITE, "name": Path("a"), "batch": batch, "strategies": ["pretended"]}
    run = start(suite, seed=np.int32(3), world_sizes=np.array([2]))
    assert [(row.case.batch.global_batch_size, row.case.world_size) for row in run.cases] == [(16, 2)]
    assert (run.analysis.info.suite["seed"], run.analysis.info.suite_name) == (3, "a")


def test_a_finished_trial_is_a_line_outside_of_a_notebook(tmp_path, capsys):
    db.run(SUITE, out=tmp_path, only=["pretended"])
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[0] for line in lines if line.startswith("[")] == [
        "[1/4]",
        "[2/4]",
        "[3/4]",
        "[4/4]",
    ]
    db.run(SUITE, out=tmp_path, only=["pretended"], quiet=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, -signal.SIGINT, "KeyboardInterrupt: stopped"),
        (
            signal.SIGUSR1,
            1,
            "InfrastructureError: the time limit around this run is near: stopped after the trial in flight",
        ),
    ],
    ids=["an interrupt", "the warning before a time limit"],
)
def test_a_signal_ends_the_run_which_can_be_resumed(tmp_path, number, code, said):
    script = f"""
import os
import distbench as db
from distbench.api import progress

class Stopping(progress.LineProgress):
    def show(self, event):
        super().show(event)
        if event.kind == "trial_ended":
            os.kill(os.getpid(), {int(number)})

progress.LineProgress = Stopping
db.run({SUITE!r}, out={str(tmp_path)!r})
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    (folder,) = tmp_path.iterdir()
    assert done.returncode == code, done.stderr
    assert f"{said}; resume with: distbench run --resume {folder}" in done.stderr
    stopped = db.load(folder)
    assert (stopped.analysis.info.state, len(stopped.records)) == ("interrupted", 1)
    assert (folder / "report.html").is_file()


def message(call: Callable[[], object]) -> str:
    """Message of the error that *call* raises, which the command line would print."""
    with pytest.raises(db.DistbenchError) as caught:
        call()
    return str(caught.value)


MISTAKES: dict[str, tuple[Callable[[db.Run], object], list[str], tuple[str, str]]] = {
    "a suite that is not there": (lambda _: db.run("nothing.yaml"), ["run", "nothing.yaml"], ("", "")),
    "a run that is not there": (lambda _: db.load("nothing"), ["show", "nothing"], ("", "")),
    "a folder of runs": (lambda run: db.load(run.folder.parent), ["show", str(SAMPLE.parent)], ("", "")),
    "an unknown table": (
        lambda run: run.table("trails"),
        ["query", "from trails", str(SAMPLE)],
        ("query: ", ""),
    ),
    "an unknown goal": (
        lambda run: run.pick(goal="speed"),
        ["pick", str(SAMPLE), "--goal", "speed"],
        ("--goal", "goal"),
    ),
    "a size without a unit": (
        lambda run: run.pick(memory="24"),
        ["pick", str(SAMPLE), "--memory", "24"],
        ("--memory", "memory"),
    ),
    "devices that were not measured": (
        lambda run: run.pick(devices=8),
        ["pick", str(SAMPLE), "--devices", "8"],
        ("--devices", "devices"),
    ),
    "a strategy to avoid that is not there": (
        lambda run: run.pick(avoid="zeroo*"),
        ["pick", str(SAMPLE), "--avoid", "zeroo*"],
        ("--avoid", "avoid"),
    ),
    "a part above 1": (
        lambda run: run.pick(within="200%"),
        ["pick", str(SAMPLE), "--within", "200%"],
        ("--within", "within"),
    ),
    "a comparison with nothing": (
        lambda run: run.compare("nothing"),
        ["compare", str(SAMPLE), "nothing", "--out", str(SAMPLE.parent)],
        ("", ""),
    ),
    "a trace that is not there": (lambda _: db.trace("no.json"), ["trace", "no.json"], ("", "")),
}


@pytest.fixture(scope="module")
def sample() -> db.Run:
    return db.load(SAMPLE)


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_has_the_sentence_of_the_command_line(what, command, sample, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mistaken, arguments, (option, name) = MISTAKES[what]
    code, _, errors = command(*arguments)
    assert code == 2
    (line,) = errors.splitlines()
    assert message(lambda: mistaken(sample)) == line.removeprefix("distbench: error: ").replace(
        option, name, 1
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"batch": {"global_batch_size": -8}}, "batch.global_batch_size = -8: must be at least 1"),
        (
            {"workload": "transfomer"},
            "workload = 'transfomer': unknown; did you mean 'transformer'? Allowed: ",
        ),
        ({"worklod": "mlp"}, "worklod = 'mlp': unknown key; did you mean 'workload'? Allowed: "),
        ({"device": "gpu"}, "device = 'gpu': did you mean 'cpu'? Allowed: auto, cpu, cuda"),
        ({"seed": object}, "seed = \"<class 'object'>\": expected a whole number"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, dict) else "",
)
def test_a_mapping_that_is_no_suite_has_its_key_and_the_allowed_values_named(
    start, tmp_path, change, sentence
):
    said = message(lambda: start({**SUITE, **change}))
    assert said.startswith(sentence)
    assert "\n" not in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"sead": 7}, "run(sead=7): sead = 7: unknown key; did you mean 'seed'? Allowed: "),
        (
            {"measure.stepz": 7},
            "run(measure.stepz=7): measure.stepz = 7: unknown key; did you mean 'steps'? ",
        ),
        (
            {"only": ["zero*"]},
            "run(only=[\"zero*\"]): only[0] = 'zero*': matches no case; labels: pretended, ",
        ),
        ({"world sizes": 7}, "run(world sizes=7): expected key=value, for example measure.steps=10"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, dict) else "",
)
def test_an_override_that_is_no_key_is_named_as_it_was_given(start, tmp_path, overrides, sentence):
    assert message(lambda: start(**overrides)).startswith(sentence)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("suite", [None, ["ddp"], 7], ids=str)
def test_what_is_no_suite_at_all_is_said(suite):
    assert message(lambda: db.run(suite)) == (
        f"suite = {suite!r}: expected a suite's file, or a mapping with at least workload, batch, strategies"
    )


def test_values_that_no_file_could_hold_are_said():
    endless: dict[str, Any] = {}
    endless["workload"] = endless
    assert message(lambda: db.run(endless)) == (
        "suite: Circular reference detected; use text, numbers, lists and mappings with text as keys"
    )
    assert message(lambda: db.run({"batch": {(1, 2): 3}})).startswith("suite: keys must be str")


def test_each_mistake_of_a_mapping_is_a_line():
    said = message(lambda: db.run({}))
    assert said.splitlines() == [
        f"{key}: missing; it has no default" for key in ("workload", "batch", "strategies")
    ]


def test_a_name_that_is_no_chart_case_or_form_is_said_with_the_nearest():
    run = db.load(SAMPLE)
    assert message(lambda: run.figure("memory-part")).startswith(
        "figure 'memory-part': did you mean 'memory-parts'? Allowed: "
    )
    assert message(lambda: run.case("dpp")).startswith(
        "no single case has the name or label 'dpp'; did you mean 'ddp'? Allowed: "
    )
    assert message(lambda: run.table("trials", "panda")) == (
        "as_ = 'panda': did you mean 'pandas'? Allowed: arrow, pandas, polars, records"
    )


def test_another_thread_than_the_main_one_is_refused(start):
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(message(start)))
    thread.start()
    thread.join()
    assert said == ["run: only the main thread can be interrupted, so call it from that one"]


def test_processes_that_torchrun_has_started_are_told_to_run_the_command(start, monkeypatch):
    placed = "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1"
    for variable in placed.split():
        monkeypatch.setenv(*variable.split("="))
    with pytest.warns(UserWarning, match="RANK.*: distbench starts its own ranks: start it once"):
        start()
    said = message(lambda: start({**SUITE, "launcher": "env"}))
    assert said == (
        "launcher = 'env': several processes can't share one call; start the command in each of them: "
        "distbench run SUITE"
    )
