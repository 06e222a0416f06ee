"""What the documents tell people to copy: it parses, and its commands exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from distbench.cli import main

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / "docs" / "ci").glob("*.yml"))
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
# what only reads the sample run is executed as it stands
READING = ("query", "pick", "adopt", "compare", "show", "plan", "list")
COMMAND = re.compile(r"\bdistbench (?:gate|run|compare|calibrate|history) [^\n]*--[^\n]*")


def test_there_are_workflows_for_github_and_gitlab() -> None:
    assert [file.name for file in WORKFLOWS] == ["github-comment.yml", "github-gate.yml", "gitlab.yml"]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_is_yaml_whose_commands_take_their_options(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parsed = YAML(typ="safe").load(file.read_text())
    assert parsed
    for line in COMMAND.findall(file.read_text()):
        words = shlex.split(line)
        assert main([words[1], "--help"]) == 0
        known = capsys.readouterr().out
        for option in (word for word in words if word.startswith("--")):
            assert option in known, f"{file.name}: {words[1]} has no {option}"


def test_no_workflow_gives_secrets_to_the_code_of_a_pull_request() -> None:
    yaml = YAML(typ="safe")
    gate = yaml.load((ROOT / "docs/ci/github-gate.yml").read_text())
    comment = yaml.load((ROOT / "docs/ci/github-comment.yml").read_text())
    # what runs a pull request's code reads only; what may write checks nothing out
    assert gate["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in str(gate)
    assert "secrets." not in str(gate)
    assert not [step for step in comment["jobs"]["comment"]["steps"] if "checkout" in step.get("uses", "")]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_uses_actions_at_commits_and_installs_distbench_from_a_checkout(file: Path) -> None:
    text = file.read_text()
    # a tag can be moved to other code
    for used in re.findall(r"uses: (.*)", text):
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", used), used
    assert all("-c .distbench/constraints.txt" in line for line in text.splitlines() if "pip install" in line)


def test_no_page_or_message_installs_distbench_by_a_name_that_may_be_anothers() -> None:
    files = [*PAGES, *(ROOT / "docs").rglob("*.*"), *(ROOT / "distbench").rglob("*.py")]
    by_name = re.compile(r"pip install[^\n&]*[ '\"]distbench\b")
    assert not [file.name for file in files if by_name.search(file.read_text())]


def commands(page: Path) -> list[list[str]]:
    """Commands of *page*'s shell blocks, without those that set up an environment."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line.partition(" #")[0] for block in blocks for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("distbench ")]


ON_PAGES = [
    pytest.param(words, id=f"{page.stem}:{' '.join(words[1:4])}")
    for page in PAGES
    for words in commands(page)
]


@pytest.mark.parametrize("words", ON_PAGES)
def test_a_command_on_a_page_runs_or_at_least_takes_its_options(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    _, verb, *arguments = words
    if verb in READING and "RUN" not in arguments:
        assert main([verb, *arguments]) == 0
        assert len(capsys.readouterr().out) > 100
    else:
        assert main([verb, "--help"]) == 0
        known = capsys.readouterr().out
        assert not [option for option in arguments if option.startswith("--") and option not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_link_on_a_page_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


def test_the_readme_shows_what_the_program_prints_of_the_sample() -> None:
    (block,) = re.findall(r"```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    command = [sys.executable, "-m", "distbench", "show", "reports/sample"]
    shown = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, check=True
    )
    assert block.count("\n") >= 20
    assert shown.stdout.startswith(block)


def test_the_folder_of_a_run_in_the_docs_is_that_of_the_sample() -> None:
    (block,) = re.findall(r"```text\n(.*?)```", (ROOT / "docs" / "records.md").read_text(), re.DOTALL)
    named = set(re.findall(r"[\w.-]+\.(?:json|yaml|html)\b", block)) - {"record.json", "report-lite.html"}
    assert named == {"run.json", "suite.yaml", "report.html", "answer.json"}
    sample = ROOT / "reports" / "sample"
    assert [name for name in named if not (sample / name).is_file()] == []
    folders = {folder for folder in ("trials", "checks") if f"{folder}/" in block}
    assert [folder for folder in folders if not list((sample / folder).glob("*/*/record.json"))] == []
    assert len(folders) == 2


def test_the_readme_is_read_in_three_minutes_and_has_one_command_for_each_job() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 180
    assert re.findall(r"^<!-- command: (\w+) -->$", readme, re.MULTILINE) == ["run", "test"]


@pytest.mark.train
def test_the_readmes_model_of_ones_own_is_initialised_planned_and_run(tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text().partition("## Your own model")[2].partition("\n## ")[0]
    (model,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    (commands_,) = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert sum(bool(line) for line in model.splitlines()) == 12
    (tmp_path / "mymodel.py").write_text(model)
    init, plan, run = (shlex.split(each)[1:] for each in commands_.split(" && "))
    short = ["--only", "ddp/ws2", "--set", "measure={warmup: 1, steps: 2, trials: 1}", "--set", "check=false"]
    for arguments in (init, plan, [*run, *short, "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "distbench", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert [case["status"] for case in json.loads(done.stdout)["cases"]] == ["measured"]
    assert "classes: 256" in (tmp_path / "mine.yaml").read_text()


def test_the_architecture_page_has_the_layers_that_are_checked_and_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    (block,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    shown = [re.split(r"\s{2,}", line)[0] for line in block.splitlines()]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert shown == next(each["layers"] for each in contracts if each["type"] == "layers")
    named = re.findall(r"`([a-z_/0-9]+\.py|[a-z_/0-9]+/)`", page)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "distbench" / name).exists()] == []
