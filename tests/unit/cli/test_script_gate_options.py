"""The options of ``distbench gate -- COMMAND``, and its arms; scripts themselves are in integration tests."""

import subprocess
from pathlib import Path

import pytest

from distbench.cli import main
from distbench.gate.script_gate import script_arms

COMMAND = ["--", "python", "train.py"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gate", *COMMAND], "gate: no baseline; give --baseline"),
        (["gate", "--baseline", "HEAD", "--"], "gate: missing the command; write it after --"),
        (["gate", "--baseline", "HEAD", "--", "a", "|", "b"], "| is for a shell; quote the whole line"),
        (["gate", "mine.yaml", "--self-test", *COMMAND], "gate: mine.yaml and a command after --; give one"),
        (["gate", "--self-test", "--dry-run", *COMMAND], "but no --since"),
        (["gate", "--self-test", "--env", "A=1", *COMMAND], "but no --since"),
        (
            ["gate", "--self-test", "--set", "batch.micro_batch_size=2", *COMMAND],
            "--set batch.micro_batch_size=2: a script has no suite; allowed: gate.KEY, measure.warmup",
        ),
        (["gate", "--self-test", "--set", "gate.pace=2%", *COMMAND], "--set: gate.pace: "),
        (["gate", "--self-test", "--set", "measure.steps=many", *COMMAND], "a script has no suite"),
        (["gate", "train.py", "--lr", "1"], "No such option: --lr"),
        (["gate"], "gate: missing SUITE; to gate a script, write: distbench gate --baseline REF -- COMMAND"),
        (["gate", "a.yaml", "train.py"], "gate: train.py is none of its arguments; to gate a script"),
        (["gate", "--baseline", "nowhere", *COMMAND], "--baseline nowhere: neither a Python environment"),
    ],
    ids=lambda each: " ".join(each[1:4]) if isinstance(each, list) else "",
)
def test_a_mistake_is_one_sentence_and_leaves_no_folder(words, told, tmp_path, monkeypatch, capsys):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    assert main(words) != 0
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error
    assert not (tmp_path / "reports").exists()


def test_the_baseline_is_a_revision_of_the_files_here_and_a_path_to_them_must_be_relative(
    tmp_path, monkeypatch
):
    repository = tmp_path / "repository"
    (repository / "jobs").mkdir(parents=True)
    script = repository / "jobs" / "train.py"
    script.write_text("print('before')\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(repository)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        subprocess.run([*git, *words], check=True)
    script.write_text("print('after')\n")
    monkeypatch.chdir(repository / "jobs")
    with script_arms(["python", "train.py"], "HEAD", self_test=False) as (before, after):
        assert before.title.startswith("HEAD (")
        assert before.place.working_directory is not None
        assert (Path(before.place.working_directory) / "train.py").read_text() == "print('before')\n"
        assert after.place.working_directory is None
    with (
        pytest.raises(Exception, match=r"train\.py is a file here, so both arms would run it"),
        script_arms(["python", str(script)], "HEAD", self_test=False),
    ):
        pass
