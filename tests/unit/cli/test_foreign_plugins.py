"""Plug-ins that a run names: no command that reads the run imports them, wherever they are."""

import json
from pathlib import Path

import pytest

from distbench.adopt import FORMATS
from distbench.core.case import Batch, PluginChoice
from support.records import case, measured, stored_run

KINDS = ("strategies", "workloads", "data", "metrics", "launchers")
MINE = PluginChoice("mine", {})

PIPELINE = case("pp", 4, workload=MINE, batch=Batch(12, 4, 3))
CASES = (case("mine"), case("ddp", workload=MINE, data=MINE), PIPELINE)
EXPORTS = [("adopt", "RUN", each.name, "--as", name) for each in CASES for name in FORMATS]
READERS = [
    *(
        ("show", "RUN"),
        ("show", "RUN", "--view", "strategies", "--csv"),
        ("show", "RUN", "--view", "memory", "--json"),
    ),
    *(("report", "RUN"), ("report", "RUN", "--lite"), ("compare", "RUN", "RUN"), ("pick", "RUN")),
    ("extrapolate", "RUN", "--to", "4,8"),
    *(("check", "RUN"), ("check", "RUN", "--repair"), ("query", "select * from cases", "RUN")),
    *(("history", "OUT"), ("runs", "OUT"), ("attach", "RUN"), ("attach", "RUN", "--cancel")),
    *(("export", "RUN", "--to", "bencher"), *EXPORTS),
]
RUNNERS = {
    *("run", "plan", "doctor", "prepare", "gate", "calibrate", "launch", "collectives", "probe", "tune"),
    *("init", "list", "completion"),
    "trace",
    "measure",
}
"""Commands that take no run, or run a suite."""


def test_the_table_has_every_command_that_reads():
    surface = json.loads((Path(__file__).parents[2] / "frozen" / "surface.json").read_text())
    assert {words[0] for words in READERS} | RUNNERS == {*surface["commands"], "check"}


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_no_plug_in_that_a_run_names_is_imported(words, command, tmp_path, monkeypatch):
    ran, out = tmp_path / "imported", tmp_path / "out"
    for kind in KINDS:
        (tmp_path / "plugins" / kind).mkdir(parents=True)
        (tmp_path / "plugins" / kind / "mine.py").write_text(f"open({str(ran)!r}, 'a').write({kind!r})\n")
    suite = {"name": "tiny", "launcher": {"mine": {}}, "metrics": [{"mine": {}}]}
    run = stored_run(out, *(measured(each) for each in CASES), suite=suite).folder
    (run / "submitted").mkdir()
    job = {"job": "17", "launcher": "mine", "nodes": 1, "offset": 0}
    (run / "submitted" / "job.json").write_text(json.dumps(job))
    monkeypatch.setenv("DISTBENCH_PLUGINS", str(tmp_path / "plugins"))
    places = {"RUN": str(run), "OUT": str(out)}
    code, _, errors = command(*(places.get(word, word) for word in words))
    assert not ran.exists(), ran.read_text()
    assert code in (0, 1, 2)
    assert "Traceback" not in errors
    if words[0] == "attach":
        assert (code, "submitted to the launcher mine, which is a plug-in" in errors) == (2, True)
    if words[0] not in ("attach", "adopt", "check", "pick", "extrapolate"):
        assert code == 0, errors
