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


@pytest.fixture
def runs(tmp_path, capsys):
    """Two runs of traces: of two ranks, and of the same with one step that takes longer."""
    for folder, longer in (("before", 0), ("after", 10)):
        (tmp_path / folder).mkdir()
        for rank in (0, 1):
            trace = training_step().kernel("gemm", 102, 120, 127 + longer).memory(60, 8, 4096, reserved=8192)
            trace.rank = rank
            trace.write(tmp_path / folder / f"rank{rank}.json")
        assert main(["trace", str(tmp_path / folder), "--out", str(tmp_path / "runs")]) == 0
    told = capsys.readouterr().err
    before, after = sorted((tmp_path / "runs").iterdir(), key=lambda run: run.name, reverse=True)
    assert all(f"run: {run}" in told and (run / "report.html").is_file() for run in (before, after))
    return str(before), str(after)


def test_a_kept_trace_answers_sql_on_all_of_its_tables(runs, command):
    for name in [*TABLES, "timeline"]:
        table = f"trace_{name}" if name in ("steps", "ranks", "collectives", "memory") else name
        code, out, err = command("query", f"select count(*) as n from {table}", *runs, "--json")
        assert code == 0, err
        # no modules and no shapes were recorded
        assert (json.loads(out)[0]["n"] == 0) == (name in ("modules", "matmuls")), name
    sql = "select round(sum(seconds) * 1e3, 3) as ms from losses where kind = 'exposed copy'"
    assert json.loads(command("query", sql, runs[0], "--json")[1]) == [{"ms": 5.0}]
    (case,) = json.loads(command("query", "select * from cases", runs[0], "--json")[1])
    assert (case["case_name"], case["world_size"], case["device"]) == ("trace/ws2", 2, "cuda")
    # nothing that a trace does not tell
    assert case["precision"] is None is case["optimizer"] is case["global_batch_size"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "{after}"], "under the profiler: "),
        (["show", "{after}", "--view", "timeline"], "rank 1"),
        (["show", "{after}", "--view", "communication"], "all_reduce fp32"),
        (["compare", "{before}", "{after}"], "1.085"),
        (["history", "{runs}"], "step_s (s, lower is better) over runs"),
        (["export", "{after}", "--to", "openmetrics"], 'distbench_step_s{{suite="after",case="trace/ws2"}}'),
        (["report", "{after}"], "report.html"),
        (["check", "{after}"], "files sound"),
    ],
)
def test_other_commands_read_a_kept_trace(runs, tmp_path, command, arguments, words):
    places = dict(zip(("before", "after"), runs, strict=True)) | {"runs": str(tmp_path / "runs")}
    code, out, err = command(*(each.format_map(places) for each in arguments))
    assert code == 0, err
    assert words.format_map(places) in " ".join(out.split())


def test_the_traces_of_a_run_are_read_again_as_long_as_they_are_there(runs, tmp_path, command):
    code, out, _ = command("trace", runs[1], "--against", runs[0], "--json")
    assert code == 0
    changes = json.loads(out)["tables"]["changes"]["rows"]
    assert changes[0]["change"] == pytest.approx(0.005)
    (tmp_path / "after" / "rank1.json").unlink()
    code, _, err = command("trace", runs[1])
    assert code == 2 and "rank1.json: there is no such file" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["adopt", "{after}", "trace", "--as", "torch"],
            "traces, which do not tell a configuration",
        ),
        (["run", "--resume", "{after}"], "it keeps traces, which are complete"),
    ],
)
def test_a_kept_trace_is_neither_a_configuration_nor_resumed(runs, command, arguments, words):
    code, _, err = command(*(each.format(after=runs[1]) for each in arguments))
    assert code == 2 and words in err
