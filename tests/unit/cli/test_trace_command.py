"""``distbench trace``: its overview, its tables, and its mistakes."""

import csv
import io
import json

import pytest

from distbench.cli import main
from distbench.report.trace_tables import TABLES
from support.chrome_traces import ChromeTrace, training_step


@pytest.fixture
def file(tmp_path):
    return str(training_step().write(tmp_path / "rank0.json"))


def test_the_overview_says_where_the_time_of_a_step_goes_and_what_to_do(file, capsys):
    assert main(["trace", file]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "A step takes 55 ms: 45% computation, 18% exposed communication, 9.1% exposed copies and 27% idle."
        in text
    )
    assert "10 ms 18% exposed communication: all_reduce of 0,1 Start it earlier" in text
    assert "5 ms 9.1% idle: synchronisation at train.py(12): main" in text
    assert "Take .item(), print(tensor)" in text
    assert "Note: traces of 1 of 2 ranks" in text
    assert "More with --table: losses, ranks, collectives, operators, kernels." in text


def test_each_table_is_text_csv_markdown_and_json_with_the_same_numbers(file, capsys):
    assert main(["trace", file, "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    names = [*TABLES]
    assert names[:3] == ["losses", "steps", "ranks"] and names[-1] == "memory"
    assert list(tables) == names
    (reduction,) = tables["collectives"]["rows"]
    assert reduction["bytes"] == 4000 and reduction["transfer_s"] is None
    assert {*reduction["absent"]} == {"transfer_s", "wait_s", "algbw", "busbw"}
    step = tables["steps"]["rows"][0]
    assert (round(step["seconds"], 6), round(step["compute_s"], 6), round(step["idle_s"], 6)) == (
        0.1,
        0.04,
        0.03,
    )
    for name in names:
        assert main(["trace", file, "--table", name, "--csv"]) == 0
        rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        assert len(rows) == len(tables[name]["rows"])
        assert all(set(row) == {column["name"] for column in tables[name]["columns"]} for row in rows)
        for form in ([], ["--md"]):
            assert main(["trace", file, "--table", name, *form]) == 0
            assert capsys.readouterr().out.strip() or not rows
    assert sum(len(tables[name]["rows"]) for name in names) > 10


def test_the_difference_to_another_trace_is_explained_by_causes_that_add_up(
    file, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "160")
    slower = training_step().kernel("gemm", 102, 120, 127).write(tmp_path / "after.json")
    assert main(["trace", str(slower), "--against", file]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "A step takes 58.5 ms" in text and "step all 55 58.5 +3.5" in text
    assert main(["trace", str(slower), "--against", file, "--json"]) == 0
    first, *rest = json.loads(capsys.readouterr().out)["tables"]["changes"]["rows"]
    assert first["change"] == pytest.approx(0.0035) == sum(row["change"] for row in rest)


def test_people_see_the_largest_rows_and_programs_all(tmp_path, capsys):
    trace = ChromeTrace()
    for i in range(50):
        trace.kernel(f"kernel {i:02}", i, i + 0.1, i + 0.2 + i / 1000)
    file = str(trace.write(tmp_path / "rank0.json"))
    assert main(["trace", file, "--table", "kernels"]) == 0
    text = capsys.readouterr().out
    assert "kernel 49" in text and "kernel 09" not in text and "10 smaller rows are left out" in text
    assert main(["trace", file, "--table", "kernels", "--csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 51


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no.json"], "no.json: there is no such file"),
        (["{file}", "{file}"], "both are of rank 0; give one file of each rank"),
        (["{file}", "--table", "kernel"], "--table = 'kernel': did you mean 'kernels'?"),
        (["{file}", "--table", "changes"], "--table = 'changes': "),
        (["{file}", "--csv"], "--csv: choose a table with --table"),
        (["{file}", "--json", "--csv"], "use only one of --md, --csv and --json"),
        (["{file}", "{other}", "--rank", "3"], "--rank = 3: it names the rank of one file, and here are 2"),
        (["{file}", "--rank", "-1"], "--rank = -1: ranks count from 0"),
        (["{file}", "--against", "no.json"], "no.json: there is no such file"),
        (["{suite}"], "suite.yaml: it is not JSON"),
        (["{empty}"], "empty: no *.json or *.json.gz in this folder"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_2(file, tmp_path, capsys, arguments, words):
    (empty := tmp_path / "empty").mkdir()
    (suite := tmp_path / "suite.yaml").write_text("name: zero\n")
    other = ChromeTrace(rank=1).kernel("gemm", 1, 2, 3).write(tmp_path / "rank1.json")
    places = {"file": file, "empty": empty, "suite": suite, "other": other}
    assert main(["trace", *(text.format_map(places) for text in arguments)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert words in line and "Traceback" not in line
