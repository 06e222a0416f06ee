"""``distbench init`` writes a suite that can be planned; ``distbench completion`` completes in a shell."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from distbench.cli import commands, main
from distbench.cli.suite_template import GOAL_QUESTIONS, SUITE_GOALS
from distbench.suite import load_suite


@pytest.mark.parametrize("goal", SUITE_GOALS)
@pytest.mark.parametrize("devices", ["auto", "1,2"])
def test_what_init_writes_can_be_planned_and_says_what_was_asked_for(command, tmp_path, goal, devices):
    file = tmp_path / "mine.yaml"
    code, output, errors = command(
        "init", str(file), "--goal", goal, "--devices", devices, "--model", "gpt2-small"
    )
    assert (code, errors) == (0, "")
    assert f"distbench plan {file}" in output
    suite = load_suite(file)
    assert suite.work["workload"]["transformer"]["preset"] == "gpt2-small"
    assert suite.world_sizes == (None if devices == "auto" else (1, 2))
    assert command("plan", str(file))[0] == 0


def test_a_model_of_ones_own_is_named_in_the_suite(command, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2] / "models")
    file = tmp_path / "mine.yaml"
    assert command("init", str(file), "--model", "small:Small")[0] == 0
    assert load_suite(file).work["workload"]["user"]["model"] == "small:Small"


MODELS = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(1000, 8), nn.Linear(8, 999)
        self.positions = nn.Embedding(64, 8)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        if tokens.shape[1] > 64:
            raise ValueError("too long")
        return self.head(self.embedding(tokens) + self.positions(places))

class Numbers(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

class ReturnsItsLoss(Words):
    def forward(self, tokens, labels):
        return nn.functional.cross_entropy(super().forward(tokens).flatten(0, 1), labels.flatten())

class Places(nn.Module):
    '''A table of 24 positions, which refuses no length as long as it has no memory.'''

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(99, 8), nn.Embedding(24, 8)
        self.head = nn.Linear(8, 99)

    def forward(self, tokens):
        return self.head(self.words(tokens) + self.places(torch.arange(tokens.shape[1])))
"""


@pytest.mark.train
@pytest.mark.parametrize(
    ("model", "shape", "said"),
    [
        ("Words", ("tokens", 64, 999), "taken from a forward pass"),
        ("Places", ("tokens", 16, 99), "taken from a forward pass"),
        pytest.param("Numbers", ("features", 64, 10), "taken from a forward pass", marks=pytest.mark.deep),
        pytest.param("ReturnsItsLoss", ("tokens", 128, 256), "loss_function", marks=pytest.mark.deep),
    ],
)
def test_the_shape_of_a_model_of_ones_own_is_that_of_its_forward_pass(
    command, tmp_path, monkeypatch, model, shape, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "initmodels.py").write_text(MODELS)
    code, _, errors = command("init", "mine.yaml", "--model", f"initmodels:{model}", "--devices", "1,2")
    assert code == 0, errors
    user = load_suite(tmp_path / "mine.yaml").work["workload"]["user"]
    assert (user["kind"], user["length"], user["classes"]) == shape
    assert said in " ".join((tmp_path / "mine.yaml").read_text().split())
    assert ("set kind, length and classes, and loss_function" in errors) == (said == "loss_function")


DATASETS = """
import numpy as np
import torch
from torch import nn

def words():
    return [(torch.arange(9) + row, torch.arange(9) + row + 1) for row in range(64)]

def lists():
    return [{"labels": [2, 1], "input_ids": [1, 2]}] * 64

def numbers():
    return [(np.full(64, row / 64), row % 10) for row in range(64)]

def pictures():
    return [(torch.full((1, 28, 28), row / 64), row % 10) for row in range(64)]

def text():
    return [("once upon a time", 1)] * 64

def missing():
    raise FileNotFoundError("no such corpus")

class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 7)

    def forward(self, pictures):
        return self.head(self.layer(pictures).amax((2, 3)))
"""
TOKENS = {"kind": "tokens", "length": 128, "classes": 256}


@pytest.mark.train
@pytest.mark.parametrize(
    ("model", "dataset", "shape"),
    [
        ("initmodels:Words", "words", {"kind": "tokens", "length": 9, "classes": 999}),
        (
            "initdata:Convolution",
            "pictures",
            {"kind": "images", "image_size": 28, "channels": 1, "classes": 7},
        ),
        pytest.param(
            "initmodels:Numbers",
            "numbers",
            {"kind": "features", "length": 64, "classes": 10},
            marks=pytest.mark.deep,
        ),
        # of a model that doesn't take them, what the rows tell is kept
        pytest.param("initdata:Convolution", "lists", {**TOKENS, "length": 2}, marks=pytest.mark.deep),
        # rows of no kind tell nothing
        pytest.param(
            "initmodels:Words", "text", {**TOKENS, "length": 64, "classes": 999}, marks=pytest.mark.deep
        ),
    ],
)
def test_the_shape_of_a_dataset_of_ones_own_is_that_of_its_first_row(
    command, tmp_path, monkeypatch, model, dataset, shape
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "initmodels.py").write_text(MODELS)
    (tmp_path / "initdata.py").write_text(DATASETS)
    code, _, errors = command("init", "mine.yaml", "--model", model, "--data", f"initdata:{dataset}")
    assert code == 0, errors
    work = load_suite(tmp_path / "mine.yaml").work
    assert work["data"] == {"user": {"dataset": f"initdata:{dataset}"}}
    assert work["workload"]["user"] == {"model": model, **shape}
    assert ("loss_function" in errors) == (dataset == "lists")


@pytest.mark.train
@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ("missing", "--data: dataset = 'initdata:missing' raised FileNotFoundError: no such corpus"),
        pytest.param("mising", "has no mising; did you mean 'missing'?", marks=pytest.mark.deep),
        pytest.param(
            "pictures",
            "--data: rows of initdata:pictures are images, but the model takes tokens; add --model",
            marks=pytest.mark.deep,
        ),
    ],
)
def test_a_dataset_that_can_not_be_taken_writes_nothing(command, tmp_path, monkeypatch, dataset, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "initdata.py").write_text(DATASETS)
    code, _, errors = command("run", "--model", "tiny", "--data", f"initdata:{dataset}")
    assert (code, (tmp_path / "suite.yaml").exists()) == (2, False)
    assert said in errors
    assert ("initdata.py:" in errors) == (dataset == "missing")


@pytest.mark.train
@pytest.mark.deep
def test_a_model_that_can_not_be_imported_writes_nothing(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "initmodels.py").write_text(MODELS)
    code, _, errors = command("init", "mine.yaml", "--model", "initmodels:Word")
    assert (code, "has no Word; did you mean 'Words'?" in errors) == (2, True)
    assert not (tmp_path / "mine.yaml").exists()


def test_without_a_terminal_the_defaults_are_taken_and_said(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "distbench", "init", "mine.yaml", "--devices", "2"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.split()[:2] for line in done.stderr.splitlines()] == [
        ["model:", "tiny"],
        ["goal:", "throughput"],
    ]
    assert load_suite(tmp_path / "mine.yaml").world_sizes == (2,)


def test_on_a_terminal_it_asks_until_the_answer_is_one(tmp_path):
    ours, theirs = pty.openpty()
    asking = subprocess.Popen(
        [sys.executable, "-m", "distbench", "init", "mine.yaml"],
        cwd=tmp_path,
        stdin=theirs,
        stderr=subprocess.PIPE,
    )
    os.write(ours, b"\n0\n1,2\nmemry\nmemory\n")
    _, said = asking.communicate()
    os.close(ours)
    os.close(theirs)
    assert asking.returncode == 0, said
    assert b"did you mean 'memory'?" in said
    suite = load_suite(tmp_path / "mine.yaml")
    assert (suite.world_sizes, suite.description) == ((1, 2), GOAL_QUESTIONS["memory"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--goal", "speed"], "--goal = 'speed': Allowed: gate, memory"),
        (["--model", "gpt2-smal"], "did you mean 'gpt2-small'?"),
        (["--model", "llama"], "{huggingface: {model_type: llama}}"),
        (["--devices", "0"], "--devices = '0': expected numbers from 1 on"),
    ],
)
def test_a_wrong_answer_writes_nothing(command, tmp_path, arguments, message):
    file = tmp_path / "mine.yaml"
    code, _, errors = command("init", str(file), *arguments)
    assert (code, message in errors, file.exists()) == (2, True, False)


def test_a_file_that_is_there_stays_as_it_is(command, tmp_path):
    (tmp_path / "mine.yaml").write_text("mine")
    code, _, errors = command("init", str(tmp_path / "mine.yaml"))
    assert (code, "already exists" in errors, (tmp_path / "mine.yaml").read_text()) == (2, True, "mine")


def completed(command, folder: Path, *words: str) -> list[str]:
    """What bash completes the last of *words* to."""
    script = command("completion", "bash")[1]
    line = " ".join(f"'{word}'" for word in words)
    typed = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}"
    asked = f"{script}\n{typed}; _distbench; printf '%s\\n' ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", asked], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_bash_completes_commands_options_and_files(command, tmp_path):
    (tmp_path / "mine.yaml").touch()
    assert completed(command, tmp_path, "distbench", "co") == ["collectives", "compare", "completion"]
    assert "--memory" in completed(command, tmp_path, "distbench", "pick", "--m")
    assert "--memory" not in completed(command, tmp_path, "distbench", "plan", "--")
    assert completed(command, tmp_path, "distbench", "plan", "mi") == ["mine.yaml"]


def test_every_shell_gets_every_command(command):
    names = [file.stem.rstrip("_") for file in Path(commands.__path__[0]).glob("[!_]*.py")]
    for shell in ("bash", "zsh", "fish"):
        script = command("completion", shell)[1]
        assert not [name for name in names if name not in script]
    code, _, errors = command("completion", "tcsh")
    assert (code, "Allowed: bash, fish, zsh" in errors) == (2, True)


def test_help_has_a_short_name(capsys):
    assert main(["-h"]) == 0
    assert main(["plan", "-h"]) == 0
    assert "-h, --help" in capsys.readouterr().out
