"""What the documents tell people to copy: it parses, and its commands exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from distbench.cli import main

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / "docs" / "ci").glob("*.yml"))
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
