"""Gates of a script: two versions of a repository's own training, on real processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from distbench.record.run_folder import Run

SCRIPT = """
import time
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(10_000):
    inputs = torch.randn(32, 64)
    loss = model(inputs).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    time.sleep(PAUSE)
    optimizer.step()
"""
SHORT = ["--set", "measure.warmup=3", "--set", "measure.steps=20", "--set", "measure.profile_steps=1"]
PAIRS = ["--set", "gate.min_pairs=3", "--max-pairs", "3", "--json", "--quiet"]


def repository(folder: Path, *, before: str, after: str) -> Path:
    """Repository with *before* at HEAD and *after* in its file."""
    folder.mkdir()
    (folder / "train.py").write_text(before)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        subprocess.run([*git, *words], check=True)
    (folder / "train.py").write_text(after)
    return folder


def gate(folder: Path, *words: str) -> tuple[int, dict]:
    """Exit code and result of a gate of the script in *folder* against HEAD."""
    command = [sys.executable, "-m", "distbench", "gate", "--baseline", "HEAD", *SHORT, *PAIRS, *words]
    command += ["--", sys.executable, "train.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.train
@pytest.mark.deep
def test_a_slower_script_fails_by_the_size_of_its_slowdown(tmp_path):
    fast, slow = SCRIPT.replace("PAUSE", "0.05"), SCRIPT.replace("PAUSE", "0.1")
    code, result = gate(repository(tmp_path / "code", before=fast, after=slow))
    assert code == 1
    (case,) = result["cases"]
    (pace,) = [finding for finding in case["findings"] if finding["metric"] == "tokens_per_s"]
    assert pace["word"] == "regressed"
    # the pause is nearly all of a step, on a busy machine as well
    assert 1.5 < pace["ratio"] < 2.2
    assert [each["word"] for each in case["findings"] if each["metric"] == "loss"] in ([], ["pass"])
    baseline, candidate = (Run(Path(result["folder"]) / arm) for arm in ("baseline", "candidate"))
    records = [*baseline.records(), *candidate.records()]
    steps = [[len(rank) for rank in record.samples["step_s"]] for record in records]
    assert len(steps) == 12
    assert steps == [[20]] * 12


@pytest.mark.train
@pytest.mark.deep
def test_equal_versions_pass_and_another_loss_is_another_training(tmp_path):
    same = SCRIPT.replace("PAUSE", "0.05")
    wide = ["--set", "gate.tokens_per_s=30%", "--set", "gate.peak_memory=5%"]
    code, result = gate(repository(tmp_path / "equal", before=same, after=f"{same}# a comment\n"), *wide)
    assert (code, [case["word"] for case in result["cases"]]) == (0, ["pass"])
    other = same.replace("pow(2)", "pow(4)")
    code, result = gate(repository(tmp_path / "other", before=same, after=other), *wide)
    assert (code, [case["word"] for case in result["cases"]]) == (1, ["invalid"])
