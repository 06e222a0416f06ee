"""Readers of a run, or of a folder of runs, of which another process removes a part right then."""

import json
import shutil
from pathlib import Path

import pytest

from support.vanishing_folders import read_with_vanishing_folder

FROZEN = Path(__file__).parents[2] / "frozen" / "run"
TRIAL = "old/trials/ddp-ws2-mb8-fp32-74b12036ac/0"
DEEP = [pytest.mark.train, pytest.mark.deep]
SEARCHES = [
    pytest.param(("runs", "SOURCE"), id="runs"),
    pytest.param(("history", "SOURCE"), id="history", marks=DEEP),
    pytest.param(("query", "select * from steps", "--out", "SOURCE"), id="query", marks=DEEP),
    pytest.param(
        ("query", "select * from view_strategies", "--out", "SOURCE"), id="query of a view", marks=DEEP
    ),
]
READERS = [
    pytest.param(("show", "SOURCE/old"), id="show"),
    pytest.param(("check", "SOURCE/old"), id="check"),
    pytest.param(("check", "SOURCE/old", "--repair"), id="repair", marks=DEEP),
    pytest.param(("pick", "SOURCE/old"), id="pick", marks=DEEP),
    pytest.param(("report", "SOURCE/old"), id="report", marks=DEEP),
    pytest.param(("compare", "SOURCE/old", "SOURCE/new"), id="compare", marks=DEEP),
]


@pytest.fixture
def source(tmp_path) -> Path:
    """Two runs in a folder."""
    for run_id, name in (("11111111", "old"), ("22222222", "new")):
        shutil.copytree(FROZEN, tmp_path / "runs" / name)
        file = tmp_path / "runs" / name / "run.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "run_id": run_id}))
    return tmp_path / "runs"


@pytest.mark.drill("a trial's folder goes away while a command reads the run")
@pytest.mark.parametrize("words", [*READERS, *SEARCHES])
def test_a_trial_that_goes_away_is_left_out(words, source, tmp_path):
    readings = read_with_vanishing_folder(source, TRIAL, words, tmp_path / "scratch", 3)
    assert sum(each.has_vanished for each in readings) >= 1
    assert [(each.code, each.errors) for each in readings] == [(0, "")] * len(readings)


@pytest.mark.drill("a run goes away while a command reads all runs")
@pytest.mark.parametrize("words", SEARCHES)
def test_a_run_that_goes_away_is_left_out(words, source, tmp_path):
    readings = read_with_vanishing_folder(source, "old", words, tmp_path / "scratch", 17)
    assert sum(each.has_vanished for each in readings) >= 3
    assert [(each.code, each.errors) for each in readings] == [(0, "")] * len(readings)
    assert readings[0].has_vanished
    assert "old" not in readings[0].output
