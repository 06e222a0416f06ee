"""Mistakes in ``distbench measure`` that no rank is needed for: each is refused in one sentence."""

import sys

import pytest


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "missing the command; write it after --"),
        (["--", "python", "train.py", "|", "tee", "log"], "quote the whole line: distbench measure -- sh -c"),
        (["--", "no-such-command"], "no-such-command can't be started"),
        (["--steps", "-1", "--", "true"], "--steps = -1: must be at least 1"),
        (["--profile", "-1", "--", "true"], "--profile = -1: must be at least 0"),
        (["--trials", "0", "--", "true"], "--trials = 0: must be at least 1"),
        (["--", sys.executable, "-c", "pass"], "no process updated an optimizer of torch"),
        (["--", sys.executable, "-I", "-c", "pass"], "python -m distbench.attach train.py"),
    ],
)
def test_a_mistake_is_told_with_what_to_do_and_leaves_no_run(command, tmp_path, words, told):
    options, rest = (words[: words.index("--")], words[words.index("--") :]) if "--" in words else (words, [])
    code, shown, errors = command("measure", *options, "--out", str(tmp_path / "out"), *rest)
    assert (code, shown) == (2, "")
    assert told in errors
    assert errors.count("distbench: error:") == 1 and "Traceback" not in errors
    assert not [*tmp_path.glob("out/*")]


@pytest.mark.parametrize(
    ("end", "passed_on"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 15)", 143)]
)
def test_the_exit_code_of_a_command_that_fails_before_it_trains_is_passed_on(
    command, tmp_path, end, passed_on
):
    code, _, errors = command("measure", "--out", str(tmp_path / "out"), "--", sys.executable, "-c", end)
    assert code == passed_on
    assert " before an optimizer of torch updated anything; its own output says why" in errors
    assert not [*tmp_path.glob("out/*")]


def test_a_command_needs_no_separator(command, tmp_path):
    code, _, errors = command("measure", "--out", str(tmp_path / "out"), sys.executable, "-c", "pass")
    assert code == 2
    assert "no process updated an optimizer of torch" in errors
