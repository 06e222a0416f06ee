"""The bugs that ``tox -e mutants`` plants: a change of code may not quietly take one away."""

import re
import subprocess
import sys
from pathlib import Path

from mutants.planted import MUTANTS

ROOT = Path(__file__).parents[3]
WORDS = {"k", "and", "or", "not"}
"""What ``-k`` takes beside parts of names."""
RUN = ROOT / "tests" / "mutants" / "run.py"


def test_every_bug_can_still_be_planted():
    done = subprocess.run([sys.executable, RUN, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_tests_that_should_see_a_bug_are_still_there():
    lost = []
    for mutant in MUTANTS:
        text = "".join((ROOT / each).read_text() for each in mutant.tests if each.endswith(".py"))
        selected = re.findall(r"\w+", " ".join(each for each in mutant.tests if not each.endswith(".py")))
        lost += [(mutant.name, word) for word in {*selected} - WORDS if word not in text]
    assert lost == []
