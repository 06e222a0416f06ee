"""The bugs that ``tox -e mutants`` plants: a change of code may not quietly take one away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).parent / "mutants" / "run.py"


def test_every_bug_can_still_be_planted() -> None:
    done = subprocess.run([sys.executable, RUN, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
