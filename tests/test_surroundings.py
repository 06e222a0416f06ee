"""Runs where the locale has no encoding for a path, and what they leave in the folder of temporary files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import MODELS, QUICK
from drills import Drill

pytestmark = [pytest.mark.train, pytest.mark.deep]

NAME = "é 漢"


@pytest.mark.drill("LC_ALL=C without coercion, and é 漢 in --out and TMPDIR")
def test_a_locale_without_an_encoding_takes_nothing_from_a_run(tmp_path: Path, drill: Drill) -> None:
    (tmp_path / "suite.yaml").write_text(QUICK + "launcher: local\nstrategies: [ddp]\n")
    out, temporary = tmp_path / NAME / "out", tmp_path / NAME / "tmp"
    temporary.mkdir(parents=True)
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TMPDIR": str(temporary)}

    def distbench(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "distbench", *arguments],
            cwd=MODELS,
            env={**os.environ, **locale},
            capture_output=True,
            text=True,
            check=False,
        )

    done = distbench("run", str(tmp_path / "suite.yaml"), "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    (case,) = json.loads(done.stdout)["cases"]
    drill.seen(f"{case['status']}, and nothing is left in TMPDIR")
    assert case["status"] == "measured"
    assert list(temporary.iterdir()) == []
    (run,) = out.iterdir()
    shown = distbench("query", "select count(*) from steps", str(run))
    assert shown.returncode == 0, shown.stderr
