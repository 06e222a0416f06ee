"""``distbench query``: documented tables over the files of runs, answers to the digit, and no way out."""

import csv
import importlib.util
import io
import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.cli import main
from distbench.core.columns import TableColumn, TableSpec
from distbench.core.errors import UsageError
from distbench.query import Database
from distbench.query.tables import TABLES, VIEW_PREFIX
from distbench.record import RankDevice, Record
from distbench.record.run_folder import Run, write_json
from distbench.views.base import all_views
from support.records import case, failed, measured, stored_run, unsupported

QUOTED = "select strategy, world_size, median(step_s) from steps group by all"
SAMPLE = Path(__file__).parents[3] / "reports" / "sample"
CLUSTERS = Path(__file__).parents[3] / "docs" / "clusters.md"
FROZEN = Path(__file__).parents[2] / "frozen" / "run"
DDP, FSDP = case("ddp"), case("fsdp")
COLUMNS = {
    "step_s": {"unit": "s", "per_step": True, "pass": "time", "doc": "Wall time."},
    "loss": {"unit": "", "per_step": True, "pass": "time", "doc": "Loss."},
    "grad_norm": {"unit": "", "per_step": True, "pass": "check", "doc": "Norm."},
    "cpu_s": {"unit": "s", "per_step": False, "pass": "time", "doc": "CPU time."},
}
STEPS = {
    "step_s": [[0.1, 0.3], [0.2, 0.4]],
    "loss": [[3.0, 2.5], [3.5, None]],
    "grad_norm": [[1.0, 2.0], [1.0, 2.0]],
    "cpu_s": [[0.5], [0.6]],
}
ROWS = [
    {"rank": 0, "op": "all_reduce", "group_size": 2, "dtype": "float32", "calls": 3, "bytes": 12},
    {"rank": 1, "op": "all_reduce", "group_size": 2, "dtype": "float32", "calls": 3, "bytes": 12},
]


def trial(of: object = DDP, **changes: object) -> Record:
    given = {"columns": COLUMNS, "samples": STEPS, "tables": {"collectives": ROWS}}
    return replace(measured(of), **{**given, **changes})


@pytest.fixture
def store_run(tmp_path):
    """Return what writes a run of some records."""

    def call(*records: Record, run_id: str = "abcd1234") -> Run:
        own = (replace(record, run_id=run_id) for record in records)
        return stored_run(tmp_path / "reports", *own, run_id=run_id)

    return call


@pytest.fixture(scope="module")
def one_run(tmp_path_factory) -> Run:
    """A run of one trial."""
    record = replace(trial(), run_id="abcd1234")
    return stored_run(tmp_path_factory.mktemp("one"), record, run_id="abcd1234")


@pytest.fixture(scope="module")
def database(one_run) -> Database:
    """The tables of a run of one trial."""
    return Database([one_run])


@pytest.fixture
def query(tmp_path, capsys):
    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(["query", *arguments, "--out", str(tmp_path / "reports")])
        return (code, *capsys.readouterr())

    return call


def rows(run: Run | list[Run], sql: str) -> list[tuple[object, ...]]:
    return Database(run if isinstance(run, list) else [run]).query(sql).rows


def test_the_query_that_is_promised_works_over_one_run_and_over_several(store_run, query):
    store_run(trial(DDP), trial(FSDP), run_id="aaaa1111")
    slow = {**STEPS, "step_s": [[0.7, 0.7], [0.7, 0.7]]}
    store_run(trial(DDP, samples=slow), run_id="bbbb2222")
    code, output, _ = query(QUOTED + " order by all", "aaaa", "--format", "csv")
    assert (code, output) == (0, "strategy,world_size,median(step_s)\nddp,2,0.25\nfsdp,2,0.25\n")
    code, output, _ = query(QUOTED + " order by all", "--format", "csv")
    assert (code, output) == (0, "strategy,world_size,median(step_s)\nddp,2,0.55\nfsdp,2,0.25\n")


def test_the_query_that_is_promised_works_over_a_run_of_the_first_format(query):
    code, output, errors = query(QUOTED + " having world_size = 2", str(SAMPLE), "--format", "json")
    assert code == 0, errors
    found = {row["strategy"]: row["median(step_s)"] for row in json.loads(output)}
    assert found.keys() == {"ddp", "fsdp", "zero2", "zero3"}
    assert 0.1 < found["ddp"] < found["zero3"]


def test_steps_hold_what_each_step_of_the_time_pass_gave_and_nothing_else(store_run):
    run = store_run(trial())
    assert rows(run, "select rank, step, step_s, loss from steps") == [
        (0, 0, 0.1, 3.0),
        (0, 1, 0.3, 2.5),
        (1, 0, 0.2, 3.5),
        (1, 1, 0.4, None),
    ]
    columns = Database([run]).query("from steps").columns
    assert "grad_norm" not in columns and "cpu_s" not in columns


GPUS: list[RankDevice | None] = [RankDevice("cuda", 3, "GPU-a"), RankDevice("cuda", 0, "GPU-b")]
WORK = {"columns": {**COLUMNS, "work_s": {"unit": "s", "per_step": True, "pass": "profile"}}}


def test_ranks_say_where_they_ran_and_which_was_the_slowest(store_run):
    worked = {**WORK, "samples": {**STEPS, "work_s": [[0.1], [0.3]]}}
    run = store_run(trial(nodes={"a": [0], "b": [1]}, devices=GPUS, **worked), trial(FSDP))
    assert rows(run, "select * exclude (run_id, case_id, case_name, strategy, world_size) from ranks") == [
        (0, 0, "a", "cuda", 3, "GPU-a", pytest.approx(0.2), 0.1, False),
        (0, 1, "b", "cuda", 0, "GPU-b", pytest.approx(0.3), 0.3, True),
        (0, 0, None, None, None, None, pytest.approx(0.2), None, None),
        (0, 1, None, None, None, None, pytest.approx(0.3), None, None),
    ]


def test_a_rank_that_measured_nothing_has_its_place_all_the_same(store_run):
    run = store_run(replace(failed(DDP), nodes={"a": [0], "b": [1]}, devices=[None, GPUS[1]]))
    assert rows(run, "select rank, node, gpu, step_s, is_slowest from ranks") == [
        (0, "a", None, None, None),
        (1, "b", 0, None, None),
    ]


def test_the_node_that_is_slowest_over_trials_is_found(store_run):
    def worked(slow: int, round_: int) -> Record:
        samples = {**STEPS, "work_s": [[0.3 if rank == slow else 0.1] for rank in range(2)]}
        return replace(trial(nodes={"a": [0], "b": [1]}, **{**WORK, "samples": samples}), round=round_)

    run = store_run(worked(1, 0), worked(1, 1), worked(0, 2))
    told = re.search(r'distbench query "(.*from ranks.*)"', CLUSTERS.read_text())
    assert told and rows(run, told[1]) == [("b", 2, 3), ("a", 1, 3)]


def test_a_column_of_another_pass_is_no_step_even_if_it_has_as_many_samples(store_run):
    old = {name: {**column, "pass": None} for name, column in COLUMNS.items()}
    for column in old.values():
        del column["pass"]
    told, untold = store_run(trial(), run_id="aaaa1111"), store_run(trial(columns=old), run_id="bbbb2222")
    assert "grad_norm" not in Database([told]).query("from steps").columns
    assert "grad_norm" in Database([untold]).query("from steps").columns


def test_every_sample_is_there_with_its_pass_and_unit(store_run):
    found = rows(
        store_run(trial()), "select name, count(*), any_value(pass), any_value(unit) from samples group by 1"
    )
    assert sorted(found) == [
        ("cpu_s", 2, "time", "s"),
        ("grad_norm", 4, "check", ""),
        ("loss", 4, "time", ""),
        ("step_s", 4, "time", "s"),
    ]


def test_trials_have_a_column_for_every_number_and_say_how_they_ended(store_run):
    run = store_run(trial(values={"status": 7.0, "tflops": 3.0}), failed(FSDP), unsupported(case("zero3")))
    found = rows(run, "select strategy, status, tflops, status_, failed_rank from trials order by 1")
    assert found == [
        ("ddp", "measured", 3.0, 7.0, None),
        ("fsdp", "crashed", None, None, 1),
        ("zero3", "unsupported", None, None, None),
    ]


def test_cases_and_runs_tell_what_was_asked_for_and_what_came_of_it(store_run):
    run = store_run(trial(), failed(DDP, round_=1), failed(FSDP))
    assert rows(run, "select strategy, status, trials, failed, micro_batch_size, precision from cases") == [
        ("ddp", "measured", 1, 1, 4, "fp32"),
        ("fsdp", "crashed", 0, 1, 4, "fp32"),
    ]
    assert rows(run, "select run_id, suite, cases, trials, measured, year(created) from runs") == [
        ("abcd1234", "tiny", 2, 3, 1, 2026)
    ]


def test_rows_of_metrics_are_tables_and_types_agree_over_trials(store_run):
    unknown = [{"rank": 0, "share": None, "watts": None}]
    run = store_run(
        trial(tables={"power": [{"rank": 0, "share": 1, "watts": None}]}),
        trial(FSDP, tables={"power": [{"rank": 0, "share": 0.5, "watts": None}]}),
        trial(case("zero3"), tables={"power": unknown}),
    )
    assert rows(run, "select sum(share), median(watts), count(*) from power") == [(1.5, None, 3)]


def test_a_table_that_no_run_has_stands_with_its_documented_columns(store_run):
    run = store_run(unsupported(DDP))
    database = Database([run])
    for table in TABLES.values():
        columns = database.query(f"from {table.name}").columns
        assert set(columns) >= {column.name for column in table.columns}
    assert rows(run, "select median(step_s), sum(bytes) from steps, collectives") == [(None, None)]


@pytest.mark.parametrize("name", list(TABLES))
def test_every_documented_column_has_its_type_and_needs_no_quotes_unless_it_says_so(database, name):
    columns = TABLES[name].columns
    words = [f'"{c.name}"' if "in quotes" in c.doc else c.name for c in columns]
    found = database.query(f"select {', '.join(words)} from {name}")
    assert [type_.lower() for type_ in found.types] == [column.type for column in columns]
    assert all(column.doc.endswith(".") for column in columns)


def test_a_table_of_a_plugins_metric_has_the_columns_and_types_that_its_record_describes(store_run):
    columns = (TableColumn("beat_s", "double", "When.", "s"), TableColumn("word", "varchar", "What."))
    spec = TableSpec("pulses", "One row a pulse.", columns)
    run = store_run(trial(tables={"pulses": [{"rank": 0, "beat_s": 0.5}]}, described_tables={"pulses": spec}))
    found = Database([run]).query("select rank, beat_s, word from pulses")
    assert found.rows == [(0, 0.5, None)]
    assert [type_.lower() for type_ in found.types] == ["bigint", "double", "varchar"]


def test_every_column_that_a_kind_of_job_leaves_is_documented():
    tables = {table.name: table for table in Database([Run(FROZEN)]).tables()}
    left = [tables[name] for name in ("check_curve", "check_tensors", "checkpoint_parts", "converge_curve")]
    assert [column.name for table in left for column in table.columns if not column.doc] == []
    assert {column.name: column.unit for column in tables["converge_curve"].columns}["seconds"] == "s"


@pytest.mark.parametrize(
    "sql",
    [
        "drop table trials",
        "select 1; delete from trials",
        "create table mine as select * from trials",
        "set threads = 1",
        "update trials set round = 1",
        "with gone as (delete from trials returning *) select * from gone",
        "with added as (insert into runs (run_id) values ('x') returning *) select * from added",
        "begin; select 1",
    ],
)
def test_what_is_no_query_is_refused(store_run, query, sql):
    store_run(trial())
    code, output, errors = query(sql)
    assert (code, output) == (2, "")
    assert "is not supported, because runs are read-only" in errors


def test_a_query_that_was_refused_leaves_the_tables_as_they_were(store_run):
    database = Database([store_run(trial())])
    for sql in ("with gone as (delete from trials returning *) select * from gone", "select nothing"):
        with pytest.raises(UsageError):
            database.query(sql)
    assert database.query("select count(*) from trials").rows == [(1,)]


def test_an_answer_that_would_fill_the_memory_is_refused(store_run):
    database = Database([store_run(trial())], max_values=12)
    assert len(database.query("select 1, 2 from range(6)").rows) == 6
    told = "more than 6 rows, the maximum for 2 columns; aggregate, name fewer columns, or add limit"
    with pytest.raises(UsageError, match=told):
        database.query("select 1, 2 from range(7)")


def test_a_time_with_a_time_zone_is_answered_or_the_way_out_is_told(store_run, query):
    store_run(trial())
    code, output, errors = query("select now() as at")
    if importlib.util.find_spec("pytz"):
        assert (code, output.split()[0]) == (0, "at")
    else:
        told = "query: times with a time zone need pytz; install it, or cast them, as in now()::timestamp\n"
        assert (code, output, errors.endswith(told)) == (2, "", True)
    assert query("select now()::timestamp as at")[0] == 0


@pytest.mark.parametrize(
    "sql",
    [
        "from trials",
        "describe trials",
        "show tables",
        "summarize trials",
        "explain select 1",
        "with a as (select 1) select * from a; select 2",
        "pivot cases on status using count(*)",
    ],
)
def test_what_only_reads_is_answered(store_run, query, sql):
    store_run(trial())
    assert query(sql)[0] == 0


HOSTILE = ['x"; drop table runs; --', "", "Runs", "select", "strategy", "it's", "a\0b", "\x1b[31m", "é" * 300]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_others_gave_are_only_names(store_run, name):
    column = {"unit": "s", "per_step": True, "pass": "time"}
    run = store_run(
        trial(
            case(name, 2),
            columns={**COLUMNS, name: column},
            samples={**STEPS, name: [[1.0, 2.0], [3.0, 4.0]]},
            values={name: 5.0},
            tables={name: [{name: 1, name.upper(): 2, "rank": 0}]},
        )
    )
    database = Database([run])
    assert database.query("select count(*) from runs").rows == [(1,)]
    assert database.query("select distinct strategy from steps").rows == [(name,)]
    assert {row[-1] for row in database.query("from steps").rows} == {1.0, 2.0, 3.0, 4.0}
    extra = {
        table.name for table in database.tables() if not table.name.startswith(VIEW_PREFIX)
    } - TABLES.keys()
    assert len(extra) == 1


FILE_ACCESS_QUERIES = (
    "copy steps to '{file}'",
    "export database '{file}'",
    "attach '{file}' as other",
    "from read_text('{there}')",
    "from read_parquet('{there}')",
    "from '{there}'",
    "from glob('{there}')",
    "from read_csv('https://example.org/x.csv')",
    "set enable_external_access = true",
    "set python_enable_replacements = true",
    "install httpfs",
    "load httpfs",
    "from sql",
)


@pytest.mark.parametrize(
    "sql", [pytest.param(sql, marks=pytest.mark.drill(f"query: {sql}")) for sql in FILE_ACCESS_QUERIES]
)
def test_a_query_reaches_no_file_no_network_and_nothing_of_the_process(one_run, database, tmp_path, sql):
    there = next(one_run.folder.rglob("*.parquet"))
    with pytest.raises(UsageError, match=r"disabled|locked|no table|not supported"):
        database.query(sql.format(file=tmp_path / "out", there=there))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("selct 1", 'syntax error at or near "selct"'),
        ("select 1 from stps", "no table 'stps'; did you mean 'steps'? Allowed: cases, collectives,"),
        ("select sdtep from steps", 'Referenced column "sdtep" not found'),
        ("select sdtep from steps", "columns of steps: run_id, case_id, case_name, strategy"),
        ("select s.sdtep from steps s", "columns of steps: run_id, case_id, case_name, strategy"),
        ("select median(strategy, 1) from steps", "median"),
        ("", "query: missing SQL"),
        (";", "query: missing SQL"),
        ("select '\udcff'", "not valid UTF-8"),
    ],
)
def test_a_mistake_in_a_query_is_told_in_one_form(store_run, query, sql, told):
    store_run(trial())
    code, output, errors = query(sql)
    assert (code, output) == (2, "")
    assert all(line.startswith("distbench: error: ") for line in errors.splitlines())
    assert told in errors


def test_where_there_is_no_run_that_is_said(query, tmp_path):
    code, _, errors = query("select 1")
    assert (code, f"no runs in {tmp_path / 'reports'}" in errors) == (2, True)
    assert "nothing: no such run" in query("select 1", "nothing")[2]
    assert "run.json is missing" in query("select 1", str(tmp_path))[2]
    assert "did you mean 'json'?" in query("select 1", "--format", "jsn")[2]
    code, output, errors = query("select 1", "--json", "--format", "csv")
    assert (code, output) == (2, "") and "--format csv" in errors


def test_a_file_that_is_corrupt_is_named(store_run, query):
    store_run(trial(), run_id="aaaa1111")
    (file,) = store_run(trial(), run_id="bbbb2222").folder.rglob("collectives.parquet")
    file.write_bytes(file.read_bytes()[:-4])
    code, output, errors = query("select run_id, trials, damaged from runs order by all", "--format", "csv")
    assert (code, output.split()) == (0, ["run_id,trials,damaged", "aaaa1111,1,0", "bbbb2222,0,1"])
    assert f"{file.parent.name}/{file.name}: corrupt" in errors


def test_a_run_in_a_folder_of_any_name_is_read(tmp_path):
    run = stored_run(tmp_path / "a[1]*=it's", trial())
    assert rows(run, "select count(*) from steps") == [(4,)]


def test_rows_inside_of_old_records_and_beside_new_ones_make_one_table(store_run):
    new, old = store_run(trial(), run_id="aaaa1111"), store_run(run_id="bbbb2222")
    folder = old.trial_folder(FSDP, 0)
    folder.mkdir(parents=True)
    inline = trial(FSDP, run_id="bbbb2222").to_json({"samples": STEPS, "tables": {"collectives": ROWS}})
    write_json(folder / "record.json", {**inline, "format": 1})
    for table in ("steps", "collectives"):
        counted = rows([new, old], f"select strategy, count(*) from {table} group by all order by all")
        assert [strategy for strategy, _ in counted] == ["ddp", "fsdp"]
        assert len({count for _, count in counted}) == 1


def test_an_answer_is_exact_as_csv_and_json_and_sensible_as_a_table(store_run, query):
    store_run(trial())
    sql = (
        "select 0.1234567891::double as x, 12345678 as n, null as none, 'a|b' as \"t\", true as yes, "
        "'nan'::double as odd, [1, 2] as l, timestamp '2026-01-02' as at, 1 as n"
    )
    _, output, _ = query(sql, "--format", "csv")
    assert list(csv.reader(io.StringIO(output))) == [
        ["x", "n", "none", "t", "yes", "odd", "l", "at", "n"],
        ["0.1234567891", "12345678", "", "a|b", "true", "nan", "[1, 2]", "2026-01-02T00:00:00", "1"],
    ]
    _, output, _ = query(sql, "--format", "json")
    assert json.loads(output) == [
        {
            "x": 0.1234567891,
            "n": 12345678,
            "none": None,
            "t": "a|b",
            "yes": True,
            "odd": None,
            "l": [1, 2],
            "at": "2026-01-02T00:00:00",
            "n_2": 1,
        }
    ]
    heading, line = query(sql)[1].splitlines()
    assert line.split() == [
        "0.12346",
        "12345678",
        "–",
        "a|b",
        "true",
        "nan",
        "[1,",
        "2]",
        "2026-01-02T00:00:00",
        "1",
    ]
    assert heading.index("n ") == line.index("8 "), "numbers stand below each other's last digit"
    assert (
        query(sql, "--format", "markdown")[1]
        .splitlines()[2]
        .startswith("| 0.12346 | 12345678 | – | a&#124;b |")
    )


def test_what_a_record_keeps_as_json_is_data_in_json(store_run, query):
    store_run(trial(effective={"engine": "DDP"}))
    _, output, _ = query("select effective, effective->>'$.engine' as engine from trials", "--format", "json")
    assert json.loads(output) == [{"effective": {"engine": "DDP"}, "engine": "DDP"}]


def test_a_terminal_is_not_acted_on_by_what_a_table_holds(store_run, query):
    store_run(trial(tables={"odd": [{"text": "a\x1b[31mb\nc\u202ed\u061ce\u2028f\u2029g"}]}))
    assert query("select text from odd")[1] == "text\nab cdefg\n"
    assert query("select text from odd", "--format", "csv")[1] == 'text\n"ab\ncdefg"\n'


def test_the_tables_are_documented_with_and_without_a_run(store_run, query):
    code, output, _ = query("--tables")
    assert code == 0
    for table in TABLES.values():
        assert f"\n{table.name}: " in f"\n{output}"
    store_run(
        trial(values={"tflops": 1.0}, columns={**COLUMNS, "tflops": {"unit": "TFLOP/s", "doc": "Work."}})
    )
    found = {
        table["name"]: table["columns"] for table in json.loads(query("--tables", "--format", "json")[1])
    }
    assert {"name": "tflops", "type": "double", "doc": "Work.", "unit": "TFLOP/s"} in found["trials"]
    assert "tflops: double, TFLOP/s. Work." in query("--tables", "abcd")[1]


def test_every_view_is_a_table_with_documented_columns_and_the_rows_of_show():
    database = Database([Run(FROZEN)])
    tables = {table.name: table for table in database.tables()}
    views = all_views()
    assert views
    for name, view in views.items():
        table = tables[f"view_{name}"]
        assert [column.name for column in table.columns] == ["run_id", *(field.name for field in view.fields)]
        assert all(column.doc for column in table.columns), name
        answer = database.query(f"select * from view_{name}")
        rows = view.table(RunAnalysis.read(Run(FROZEN))).records()
        assert answer.columns == tuple(column.name for column in table.columns)
        assert answer.types == tuple(column.type.upper() for column in table.columns)
        assert [dict(zip(answer.columns[1:], row[1:], strict=True)) for row in answer.rows] == rows, name


def test_trials_that_were_not_timed_and_what_they_left_are_tables_apart(query):
    database = Database([Run(FROZEN)])
    kinds = database.query("select kind, count(*) from jobs group by 1 order by 1").rows
    assert [kind for kind, _ in kinds] == ["check", "checkpoint", "converge"]
    joined = """select count(*) from converge_curve c
        join jobs j on j.kind = 'converge' and c.case_id = j.case_id and c.round = j.round"""
    assert database.query(joined).rows == database.query("select count(*) from converge_curve").rows
    assert database.query("select count(*) from jobs where checkpoint_bytes > 0").rows[0][0] > 0
    code, out, _ = query("select kind from jobs limit 1", str(FROZEN), "--json")
    assert (code, json.loads(out)) == (0, [{"kind": "check"}])


def test_ctrl_c_ends_a_query_that_would_take_for_ever(store_run):
    run = store_run(trial())
    endless = "select count(*) from range(100000000000) a, range(10000000) b"
    query = subprocess.Popen([sys.executable, "-m", "distbench", "query", endless, str(run.folder)])
    try:
        for _ in range(600):
            if _default_sigint(query.pid):
                break
            time.sleep(0.05)
        query.send_signal(signal.SIGINT)
        assert query.wait(timeout=60) == -signal.SIGINT
    finally:
        query.kill()


def _default_sigint(pid: int) -> bool:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    named = Path(f"/proc/{pid}/cmdline").read_bytes().startswith(sys.executable.encode())
    # a shell lets what it starts in the background ignore Ctrl-C, until the query takes that back
    held = any(int(status[key], 16) & 1 << (signal.SIGINT - 1) for key in ("SigCgt", "SigIgn"))
    return named and not held and b"duckdb" in Path(f"/proc/{pid}/maps").read_bytes()
