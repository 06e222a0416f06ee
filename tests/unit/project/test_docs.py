"""What the documents tell people to copy: it parses, and its commands exist."""

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import distbench
from distbench.cli import main
from distbench.core import registry
from support.chrome_traces import ChromeTrace

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / "docs" / "ci").glob("*.yml"))
PAGES = sorted([*ROOT.glob("[A-Z]*.md"), *(ROOT / "docs").glob("*.md")])
COMMAND = re.compile(r"\bdistbench (?:gate|run|compare|calibrate|history) [^\n]*--[^\n]*")


def test_there_are_workflows_for_github_and_gitlab():
    assert [file.name for file in WORKFLOWS] == [
        "github-calibrate.yml",
        "github-comment.yml",
        "github-gate-cpu.yml",
        "github-gate.yml",
        "github-pages.yml",
        "gitlab.yml",
    ]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_is_yaml_whose_commands_take_their_options(file, capsys):
    parsed = YAML(typ="safe").load(file.read_text())
    assert parsed
    for line in COMMAND.findall(file.read_text()):
        words = shlex.split(line)
        assert main([words[1], "--help"]) == 0
        known = capsys.readouterr().out
        for option in (word for word in words if word.startswith("--")):
            assert option in known, f"{file.name}: {words[1]} has no {option}"


def test_no_workflow_gives_secrets_to_the_code_of_a_pull_request():
    yaml = YAML(typ="safe")
    gate = yaml.load((ROOT / "docs/ci/github-gate.yml").read_text())
    comment = yaml.load((ROOT / "docs/ci/github-comment.yml").read_text())
    # what runs a pull request's code reads only; what may write checks nothing out
    assert gate["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in str(gate)
    assert "secrets." not in str(gate)
    assert not [step for step in comment["jobs"]["comment"]["steps"] if "checkout" in step.get("uses", "")]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_uses_actions_at_commits_and_installs_distbench_from_a_checkout(file):
    text = file.read_text()
    # a tag can be moved to other code
    for used in re.findall(r"uses: (.*)", text):
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", used), used
    pinned = re.compile(r"pip install .*(-c \.distbench/constraints\.txt|--require-hashes)")
    assert [line for line in text.splitlines() if "pip install" in line and not pinned.search(line)] == []


def test_no_page_or_message_installs_distbench_by_a_name_that_may_be_anothers():
    files = [*PAGES, *(ROOT / "docs").rglob("*.[a-z]*"), *(ROOT / "distbench").rglob("*.py")]
    files = [file for file in files if file.suffix != ".pyc"]
    by_name = re.compile(r"pip install[^\n&]*[ '\"]distbench\b")
    assert not [file.name for file in files if by_name.search(file.read_text())]


def commands(page: Path) -> list[list[str]]:
    """Commands of *page*'s shell blocks, without those that set up an environment."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = [
        line.partition(" #")[0].partition(" > run.yaml")[0] for block in blocks for line in block.splitlines()
    ]
    return [shlex.split(line)[1:] for line in lines if line.lstrip().startswith("distbench ")]


PRETENDED = ["--set", "launcher={pretend: {step_s: 0.1}}", "--quiet"]
"""What makes a run of a suite a matter of seconds, and needs no torch."""
ELSEWHERE = {
    "measure",
    "torchrun",
    "attach",
    "launch",
    "prepare",
    "init",
    "probe",
    "--trace",
    "--predict",
    "tune",
    "extrapolate",
    "../torch-2.12",
}
"""Words of commands that need an engine, a compiler, torch or the rates of a machine: here only their options
are checked."""
ON_PAGES = [
    pytest.param(words, id=f"{page.stem}:{' '.join(words[:4])}") for page in PAGES for words in commands(page)
]


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """The folder that commands on pages are written for: suites, runs and a model's history of one's own."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "suites", folder / "suites")
    shutil.copytree(ROOT / "tests" / "starts", folder, dirs_exist_ok=True)
    pages = shutil.ignore_patterns("report.html", "answer.png")
    shutil.copytree(ROOT / "reports" / "sample", folder / "reports" / "sample", ignore=pages)
    shutil.copy(ROOT / "suites" / "quickstart.yaml", folder / "suites" / "mine.yaml")
    shutil.copy(ROOT / "suites" / "quickstart.yaml", folder / "mine.yaml")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder)]
    for words in (["init", "-q", "-b", "main"], ["add", "suites"], ["commit", "-qm", "a"], ["tag", "v1.0"]):
        subprocess.run([*git, *words], check=True)
    mine = folder / "suites" / "mine.yaml"
    mine.write_text(f"{mine.read_text()}\nseed: 7\n")
    for rank in (0, 1):
        for place in ("", "TRACES", "BEFORE", "AFTER"):
            (folder / place).mkdir(exist_ok=True)
            ChromeTrace(rank).collective(1, 2, 3).write(folder / place / f"rank{rank}.json.gz")
    monkeypatch.chdir(folder)
    return folder


def executed(words: list[str]) -> list[str] | None:
    """What a test runs of a command on a page; None: nothing that a machine without an engine can run."""
    verb, *arguments = words
    if ELSEWHERE & {*words} or ("--on" in arguments and verb != "plan"):
        return None
    if arguments[-2:] == ["--from", "RUN"]:
        # a run of a script, which the sample is not
        return None
    arguments = ["reports/sample" if word == "RUN" else word for word in arguments]
    if verb == "gate":
        # a second baseline is of a second gate, which a dry run does not have
        since = arguments.index("--since") if "--since" in arguments else len(arguments)
        return [verb, *arguments[:since], *arguments[since + 2 :], "--dry-run"]
    if verb == "run" and "--resume" not in arguments:
        # one case: a page's suite has dozens
        return [verb, *arguments, "--only", "ddp/ws2*", *PRETENDED]
    return [verb, *arguments]


@pytest.mark.parametrize("words", ON_PAGES)
def test_a_command_on_a_page_runs_or_at_least_takes_its_options(words, checkout, capsys):
    run = executed(words)
    if run is not None:
        # what a check says of made-up numbers means nothing
        allowed = (0, 1, 3) if words[0] == "run" else (0,)
        assert main(run) in allowed, capsys.readouterr().err
    else:
        assert main([words[0], "--help"]) == 0
        known = capsys.readouterr().out
        own = words[: words.index("--")] if "--" in words else words
        assert not [option for option in own if option.startswith("--") and option not in known]


def test_the_examples_in_python_run_one_after_another(checkout, capsys):
    page = (ROOT / "docs" / "python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 5
    launcher = {"pretend": {"step_s": 0.1}}
    names: dict[str, Any] = {"pretended": functools.partial(distbench.run, launcher=launcher, quiet=True)}
    for block in blocks:
        exec(block.replace("db.run(", "pretended("), names)
    printed = capsys.readouterr().out
    assert f"reports/tiny-{names['tiny'].analysis.info.created[:4]}" in printed
    assert "Train with " in printed
    # the comment on the page quotes the message
    (quoted,) = re.findall(r"# (run\(seeed.*) \.\.\.$", page, re.MULTILINE)
    assert f"\n{quoted}" in printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_link_on_a_page_leads_to_a_file(page):
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert not [link for link in links if not (page.parent / link).exists()]


def test_the_readme_shows_what_the_program_prints_of_the_sample():
    (block,) = re.findall(r"```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    command = [sys.executable, "-m", "distbench", "show", "reports/sample"]
    shown = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, check=True
    )
    assert block.count("\n") >= 20
    assert shown.stdout.startswith(block)


def test_the_folder_of_a_run_in_the_docs_is_that_of_the_sample():
    (block,) = re.findall(r"```text\n(.*?)```", (ROOT / "docs" / "records.md").read_text(), re.DOTALL)
    named = set(re.findall(r"[\w.-]+\.(?:json|yaml|html)\b", block)) - {"record.json", "report-lite.html"}
    assert named == {"run.json", "suite.yaml", "report.html", "answer.json"}
    sample = ROOT / "reports" / "sample"
    assert [name for name in named if not (sample / name).is_file()] == []
    folders = {folder for folder in ("trials", "checks") if f"{folder}/" in block}
    assert [folder for folder in folders if not list((sample / folder).glob("*/*/record.json"))] == []
    assert len(folders) == 2


def test_the_readme_is_read_in_three_minutes_and_has_one_command_for_each_job():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 120
    assert re.findall(r"^<!-- command: (\w+) -->$", readme, re.MULTILINE) == ["run", "test"]


@pytest.mark.train
def test_the_readmes_model_of_ones_own_is_initialised_planned_and_run(tmp_path):
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


def test_the_architecture_page_has_the_layers_that_are_checked_and_files_that_exist():
    page = (ROOT / "docs" / "architecture.md").read_text()
    (block,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    shown = [re.split(r"\s{2,}", line)[0] for line in block.splitlines()]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert shown == next(each["layers"] for each in contracts if each["type"] == "layers")
    named = re.findall(r"`([a-z_/0-9]+\.py|[a-z_/0-9]+/)`", page)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "distbench" / name).exists()] == []


def example_files() -> Iterator[Any]:
    """The plug-ins of the architecture page, each by the path in its first line."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        path = re.match(r"# (mine/\S+)", block)
        assert path, block
        yield pytest.param(path[1], block, id=path[1])


@pytest.mark.parametrize(("path", "block"), [*example_files()])
def test_an_example_of_a_seam_is_a_plugin(path, block, tmp_path, monkeypatch, capsys):
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(block)
    monkeypatch.setenv("DISTBENCH_PLUGINS", str(tmp_path / "mine"))
    _, kind, name = Path(path.removesuffix("/__init__.py")).with_suffix("").parts
    assert main(["list", kind, name, "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)[kind]
    assert listed["summary"]
    assert "problem" not in listed
    registry.load_plugin(kind, name)()


def test_there_is_an_example_of_every_seam():
    assert sorted({each.values[0].split("/")[1] for each in example_files()}) == sorted(registry.PLUGIN_KINDS)


def test_a_model_of_ones_own_is_that_of_the_readme():
    readme, page = (ROOT / "README.md").read_text(), (ROOT / "docs" / "own-model.md").read_text()
    (model,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert f"```python\n{model}```" in readme
    assert all(
        f"distbench {' '.join(words)}".removesuffix(" --check") in readme
        for words in commands(ROOT / "docs" / "own-model.md")
    )


def test_the_table_of_strategies_has_a_row_for_each():
    page = (ROOT / "docs" / "strategies.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(registry.built_in_plugins("strategies"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_page_is_longer_than_one_reads(page):
    assert len(page.read_text().splitlines()) <= 320
