"""The Dockerfile copies what there is, and installs the versions that the tests passed with."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "Dockerfile").read_text()
# lines that go on are one
LINES = re.sub(r"\\\n\s*", "", TEXT).splitlines()


def instructions(word: str) -> list[str]:
    found = [line.removeprefix(f"{word} ") for line in LINES if line.startswith(f"{word} ")]
    assert found, f"no {word}"
    return found


def test_what_is_copied_is_there_and_all_that_an_installation_reads():
    copied = [name for line in instructions("COPY") for name in line.split()[:-1]]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"pyproject.toml", "distbench", project["readme"], *project["license-files"]} <= {*copied}


def test_the_versions_of_the_constraints_are_installed_with_extras_that_exist():
    (command,) = re.findall(r"pip install .*", "\n".join(instructions("RUN")))
    assert "-c /opt/source/constraints.txt" in command
    (extras,) = re.findall(r"'/opt/source\[(.*)\]'", command)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*extras.split(",")} <= {*known}


def test_the_image_runs_for_a_user_without_rights_and_names_no_index_of_its_own():
    assert re.fullmatch(r"[1-9]\d*", instructions("USER")[-1])
    assert [line for line in instructions("ARG") if line.startswith("PIP") and "=" in line] == []
