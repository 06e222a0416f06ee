"""What CI installs: the versions of ``constraints.txt`` with hashes, and none that nothing needs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
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


@pytest.mark.parametrize("file", LOCKS, ids=lambda file: file.stem)
def test_every_pin_of_a_lock_has_hashes_and_says_who_needs_it(file):
    entries = re.split(r"^(?=[a-z0-9])", file.read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) == len(pins(file)) > 3
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}$", entry, re.MULTILINE), entry.splitlines()[0]
        assert re.search(r"^ +# via", entry, re.MULTILINE), entry.splitlines()[0]
