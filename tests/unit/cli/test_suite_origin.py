"""``distbench run --from FILE``: from a file of another framework to a report in one command."""

import json
import re
import shutil
from pathlib import Path

import pytest

from distbench.record.run_folder import Run

STARTS = Path(__file__).parents[2] / "starts"
FILES = ("ds_config.json", "training_arguments.json", "accelerate.yaml")
PRETENDED = ("--set", "launcher={pretend: {step_s: 0.1}}", "--set", "check=false", "--quiet")
"""What makes a run a matter of seconds, and needs no torch."""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with the files of tutorials, where commands run."""
    shutil.copytree(STARTS, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def runs(folder: Path) -> list[Run]:
    """In no order: the names of two runs of one second differ in their random end only."""
    return [Run(each) for each in (folder / "reports").glob("*") if each.is_dir()]


@pytest.mark.parametrize("name", FILES)
def test_a_file_becomes_a_suite_and_a_report_with_one_command(command, folder, name):
    code, output, errors = command("run", "--from", name, "--model", "tiny", *PRETENDED)
    assert code in (0, 3), errors
    assert "suite.yaml: written" in errors
    (run,) = runs(folder)
    assert (run.folder / "report.html").is_file()
    assert f"report: {run.folder.relative_to(folder)}/report.html" in output
    assert "yours" in {record.case.label for record in run.records()} or "fp16" in output
    # as if the suite had been written first
    written = (folder / "suite.yaml").read_text()
    (folder / "suite.yaml").unlink()
    assert command("init", "--from", name, "--model", "tiny")[0] == 0
    assert (folder / "suite.yaml").read_text() == written
    # and what it does not have is printed, and stands in it
    left = [line.removeprefix("left out: ") for line in errors.splitlines() if line.startswith("left out")]
    assert left == re.findall(r"^# - (.*)", written, re.MULTILINE)
    assert {"training_arguments.json": 0}.get(name, 1) <= len(left)


def test_the_same_command_again_takes_the_suite_that_is_there(command, folder):
    words = ("run", "mine.yaml", "--from", "accelerate.yaml", "--model", "tiny", *PRETENDED)
    assert "mine.yaml: written" in command(*words)[2]
    (first,) = runs(folder)
    before = Path("mine.yaml").stat()
    code, _, errors = command(*words, "--only", "yours*")
    assert code in (0, 3), errors
    assert "written" not in errors
    after = Path("mine.yaml").stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert not Path("suite.yaml").exists()
    (second,) = (run for run in runs(folder) if run.folder != first.folder)
    assert len(first.records()) > len(second.records()) > 0
    # it is resumed as any run is
    shutil.rmtree(next((second.folder / "trials").iterdir()))
    assert second.records() == []
    assert command("run", "--resume", str(second.folder), "--quiet")[0] in (0, 3)
    assert [record.case.label for record in second.records()]


def test_another_suite_is_never_overwritten(command, folder):
    assert command("init", "--from", "accelerate.yaml", "--model", "tiny")[0] == 0
    changed = Path("suite.yaml").read_text().replace("steps: 10", "steps: 11")
    Path("suite.yaml").write_text(changed)
    code, _, errors = command("run", "--from", "accelerate.yaml", "--model", "tiny", *PRETENDED)
    assert (code, Path("suite.yaml").read_text(), runs(folder)) == (2, changed, [])
    assert (
        "suite.yaml: already exists, and is not the suite of --from accelerate.yaml --model tiny; run it as "
        "it is with distbench run suite.yaml, or name a new file: distbench run FILE --from accelerate.yaml"
    ) in errors


SUITE = "workload: mlp\nstrategies: [ddp]\nbatch: {global_batch_size: 8}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from", "nothing.json", "--model", "tiny"], "--from: no such file, and as a run: nothing.json"),
        (
            ["--from", "reports", "--model", "tiny"],
            "--from: reports is a folder without run.json; give a file such as",
        ),
        (["--from", "empty.json", "--model", "tiny"], "empty.json: the file is empty"),
        (["--from", "picture.png", "--model", "tiny"], "picture.png: not UTF-8 text"),
        (["--from", "lines.json", "--model", "tiny"], "lines.json:2: not JSON"),
        (["--from", "list.json", "--model", "tiny"], "list.json: expected a mapping of keys, not list"),
        (["--from", "own.yaml", "--model", "tiny"], "this is a suite; run it with: distbench run own.yaml"),
        (
            ["--from", "train_ddp.py", "--model", "tiny"],
            "distbench run --model module:callable --data module:callable",
        ),
        (["--from", "ds_config.json"], "ds_config.json does not name the model; add --model"),
        (["--from", "ds_config.json", "--model", "tinny"], "did you mean 'tiny'?"),
        (["--from", "ds_config.json", "--model", "nothing:Model"], "--model = 'nothing:Model': no module"),
        (["--from", "config.json", "--model", "tiny"], "--model = 'tiny': leave it out"),
        (
            ["--from", "ds_config.json", "--model", "tiny", "--data", "rows"],
            "--data = 'rows': must be of the",
        ),
        (["--model", "tiny", "--data", "nothing:rows"], "--data = 'nothing:rows': no module nothing in"),
        (["--data", "train_ddp:Characters"], "--data train_ddp:Characters: no model takes these rows"),
        (["--from", "ds_config.json", "--model", "tiny", "--resume", "RUN"], "--from: leave it out beside"),
        (["no/mine.yaml", "--model", "tiny"], "no/mine.yaml: the folder no does not exist"),
        (
            ["own.yaml", "--model", "tiny"],
            "own.yaml: already exists, and is not the suite of --model tiny",
        ),
        (["reports", "--model", "tiny"], "reports: can't be read"),
        (
            ["ds_config.json", "--model", "tiny"],
            "ds_config.json: this is a configuration of DeepSpeed, not a suite; distbench run --from FILE",
        ),
        (["ds_config.json"], "distbench run --from FILE --model MODEL compares it with its alternatives"),
        ([], "distbench run --from FILE, which writes one"),
    ],
)
def test_a_mistake_is_one_message_and_writes_nothing(command, folder, words, said):
    (folder / "reports").mkdir()
    (folder / "empty.json").touch()
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n")
    (folder / "lines.json").write_text('{\n"a": {')
    (folder / "list.json").write_text("[1]")
    (folder / "own.yaml").write_text(SUITE)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    code, output, errors = command("run", *words)
    assert (code, output) == (2, "")
    (line,) = (line for line in errors.splitlines() if not line.startswith("left out"))
    assert line.startswith("distbench: error: ")
    assert said in line
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_a_value_that_no_suite_has_is_said_before_anything_is_written(command, folder):
    told = json.loads((folder / "training_arguments.json").read_text())
    Path("odd.json").write_text(json.dumps({**told, "per_device_train_batch_size": -4}))
    code, _, errors = command("run", "--from", "odd.json", "--model", "tiny")
    assert (code, Path("suite.yaml").exists()) == (2, False)
    assert "--from: odd.json can't be carried over" in errors
