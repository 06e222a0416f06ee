"""Tests can be collected where only what their folder needs is installed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WITHOUT_PLAYWRIGHT = """
import sys
import pytest
sys.modules["playwright"] = None
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "tests/gpu/test_04_step_time.py"]))
"""


@pytest.mark.train
def test_checks_of_gpus_need_no_browser():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PLAYWRIGHT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_04_step_time.py::" in done.stdout
