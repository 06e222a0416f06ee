"""What CI installs: the versions of ``constraints.txt`` with hashes, and none that nothing needs."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OLDEST = ROOT / "requirements" / "oldest.txt"
LOCKS = sorted({*(ROOT / "requirements").glob("*.txt")} - {OLDEST})
UNHASHED = {"torch", "mpmath", "networkx", "sympy"}
"""torch is another file on each kind of machine; the others are needed by torch alone."""


def pins(file: Path) -> dict[str, str]:
    """Versions in *file*, by the normalized name of the distribution."""
    found = re.findall(r"^([\w.-]+)==([^\s;]+)", file.read_text(), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def test_what_is_pinned_is_needed_and_what_is_needed_is_pinned():
    locked = {name: version for file in LOCKS for name, version in pins(file).items()}
    pinned = pins(ROOT / "constraints.txt")
    assert {name: version for name, version in pinned.items() if name not in UNHASHED} == locked
    assert pinned.keys() >= UNHASHED


def minima(*extras: str) -> dict[str, str]:
    """Lowest versions that ``pyproject.toml`` allows, of what is needed always and with *extras*."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [
        *project["dependencies"],
        *(x for extra in extras for x in project["optional-dependencies"][extra]),
    ]
    return dict(re.match(r"([\w.-]+)(?:\[\w+\])?>=([\d.]+)", each).groups() for each in needed)


def release(version: str, digits: int) -> tuple[int, ...]:
    """As many numbers of *version*, zeros where it has fewer."""
    return tuple(map(int, [*version.split("."), *"000"][:digits]))


def test_the_oldest_set_has_the_lowest_version_of_all_that_users_install():
    lowest = minima("train", "huggingface", "optimizers", "trackers", "bucket", "ray")
    (torch,) = re.findall(r"pip install -q torch==([\d.]+)", (ROOT / "tox.ini").read_text())
    installed = {**pins(OLDEST), "torch": torch}
    assert len(lowest) > 20
    for name, version in lowest.items():
        digits = 1 + version.count(".")
        assert release(installed[name.replace(".", "-")], digits) == release(version, digits), name


@pytest.mark.parametrize("file", [*LOCKS, OLDEST], ids=lambda file: file.stem)
def test_every_pin_of_a_lock_has_hashes_and_says_who_needs_it(file):
    entries = re.split(r"^(?=[a-z0-9])", file.read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) == len(pins(file)) > 3
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}$", entry, re.MULTILINE), entry.splitlines()[0]
        assert re.search(r"^ +# via", entry, re.MULTILINE), entry.splitlines()[0]
