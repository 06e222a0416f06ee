"""Profiler traces in Python: the tables of ``distbench trace``."""

import json
from pathlib import Path

import pytest

import distbench as db
from support.chrome_traces import ChromeTrace


@pytest.fixture
def folders(tmp_path) -> list[Path]:
    """Traces of two ranks, and of the same with a longer collective."""
    made = [tmp_path / "before", tmp_path / "after"]
    for folder, length in zip(made, (3, 5), strict=True):
        folder.mkdir()
        for rank in (0, 1):
            ChromeTrace(rank).collective(1, 2, length).write(folder / f"rank{rank}.json")
    return made


def test_tables_are_those_of_the_command_line(folders, command):
    before, after = folders
    trace = db.trace(after, against=before)
    code, printed, _ = command("trace", str(after), "--against", str(before), "--json")
    stated = json.loads(printed)
    assert code == 0
    assert trace.notes == stated["notes"]
    assert trace.tables == list(stated["tables"])
    for name in trace.tables:
        plain = [{key: row[key] for key in row if key != "absent"} for row in stated["tables"][name]["rows"]]
        assert trace.table(name, "records") == plain
    assert len(trace.table("steps", "records")) >= 2
    assert "Changes" in trace._repr_html_()
    assert repr(trace).startswith("<distbench trace of 2 ranks: ")


def test_files_are_named_one_by_one_or_by_their_folder(folders):
    named = db.trace([folders[0] / f"rank{rank}.json" for rank in (0, 1)])
    assert named.table("ranks", "records") == db.trace(str(folders[0])).table("ranks", "records")
    assert "changes" not in named.tables
    assert "Losses" in named._repr_html_()


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda folder: db.trace([]), "trace: no file is given; give one file of each rank, or their folder"),
        (lambda folder: db.trace(folder).table("step"), "table = 'step': did you mean 'steps'? Allowed: "),
        (
            lambda folder: db.trace(folder, rank=1),
            "--rank = 1: it names the rank of one file, and here are 2",
        ),
    ],
    ids=["no file", "no table", "a rank of several files"],
)
def test_a_mistake_says_what_to_do(folders, ask, sentence):
    with pytest.raises(db.UsageError) as caught:
        ask(folders[0])
    assert str(caught.value).startswith(sentence)


def test_a_trace_is_kept_as_a_run_with_its_tables(folders, tmp_path):
    trace = db.trace(folders[1])
    run = trace.store(tmp_path / "runs")
    assert run.folder.parent == tmp_path / "runs"
    kept = [{key: row[key] for key in ("kind", "name", "seconds")} for row in run.table("losses", "records")]
    assert kept == [
        {key: row[key] for key in ("kind", "name", "seconds")} for row in trace.table("losses", "records")
    ]
    assert kept and [case.case.name for case in run.cases] == ["trace/ws2"]
    assert "timeline-lanes" in run.figures
