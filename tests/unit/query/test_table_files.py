"""``query --table``: files of other tools as tables beside those of a run."""

import json
from pathlib import Path

import pytest

from distbench.cli import main

SAMPLE = Path(__file__).parents[3] / "reports" / "sample"
# of nccl-tests 2.13 on eight GPUs: checks are off in place (-c 0)
NCCL_TESTS = """\
# nThread 1 nGpus 8 minBytes 8388608 maxBytes 33554432 step: 4(factor) warmup iters: 5 iters: 20
#  out-of-place  in-place
#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong
#  (B)  (elements)  (us)  (GB/s)  (GB/s)  (us)  (GB/s)  (GB/s)
  8388608  2097152  float  sum  -1  151.2  55.48  97.09  0  150.9  55.59  97.28  N/A
  33554432  16777216  bfloat16  sum  -1  333.5  100.61  176.07  3  331.0  101.37  177.40  N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth  : 136.9
"""


def query(capsys, sql: str, *tables: str) -> list[dict]:
    options = [part for table in tables for part in ("--table", table)]
    assert main(["query", sql, str(SAMPLE), "--json", *options]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows
    return rows


def refusal(capsys, *tables: str) -> str:
    options = [part for table in tables for part in ("--table", table)]
    assert main(["query", "select 1", str(SAMPLE), *options]) == 2
    done = capsys.readouterr()
    assert not done.out
    return done.err


def test_output_of_nccl_tests_has_the_units_of_a_run(tmp_path, capsys):
    (tmp_path / "nccl.txt").write_text(NCCL_TESTS)
    rows = query(capsys, "from nccl", f"nccl={tmp_path / 'nccl.txt'}")
    assert len(rows) == 4
    assert rows[0] == {
        "bytes": 8388608,
        "count": 2097152,
        "dtype": "fp32",
        "redop": "sum",
        "root": -1,
        "in_place": False,
        "seconds": pytest.approx(151.2e-6),
        "algbw": pytest.approx(55.48e9),
        "busbw": pytest.approx(97.09e9),
        "wrong": 0,
    }
    assert [row["in_place"] for row in rows] == [False, True, False, True]
    assert (rows[2]["dtype"], rows[2]["wrong"], rows[3]["wrong"]) == ("bf16", 3, None)
    # bytes over seconds, to the digits that are printed
    assert all(row["algbw"] == pytest.approx(row["bytes"] / row["seconds"], rel=1e-3) for row in rows)


def test_a_table_of_a_vendor_joins_with_the_cases_of_a_run(tmp_path, capsys):
    (tmp_path / "vendor.csv").write_text("strategy,devices,tokens_per_s\nddp,2,9200\nnone of ours,2,1\n")
    rows = query(
        capsys,
        "select c.strategy, v.tokens_per_s from cases c join vendor v "
        "on c.strategy = v.strategy and c.world_size = v.devices",
        f"vendor={tmp_path / 'vendor.csv'}",
    )
    assert rows == [{"strategy": "ddp", "tokens_per_s": 9200}]


def test_tables_lists_the_file_with_its_units(tmp_path, capsys):
    (tmp_path / "nccl.txt").write_text(NCCL_TESTS)
    assert main(["query", "--tables", str(SAMPLE), "--json", "--table", f"n={tmp_path / 'nccl.txt'}"]) == 0
    listed = {table["name"]: table for table in json.loads(capsys.readouterr().out)}
    assert {column["name"]: column["unit"] for column in listed["n"]["columns"]}["busbw"] == "B/s"


def test_no_query_reaches_another_file(tmp_path, capsys):
    for name in ("one.csv", "other.csv"):
        (tmp_path / name).write_text("a,b\n1,2\n")
    one, other = f"one={tmp_path / 'one.csv'}", tmp_path / "other.csv"
    assert query(capsys, "from one", one) == [{"a": 1, "b": 2}]
    assert main(["query", f"from read_csv('{other}')", str(SAMPLE), "--table", one]) == 2
    assert "disabled by configuration" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it has one column"),
        (b"only text\nwithout a table\n", "it has one column"),
        (b"a,b\n1,2,3\n\"x", "neither CSV with a header nor the output of nccl-tests"),
        (b"\x7fELF\xd0\x00", "not UTF-8 text"),
        (None, "No such file or directory"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_table_is_refused(tmp_path, capsys, content, said):
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    error = refusal(capsys, f"t={file}")
    assert f"--table t={file}: " in " ".join(error.split())
    assert said in " ".join(error.split())


def test_a_name_of_a_file_is_no_pattern(tmp_path, capsys):
    (tmp_path / "t[1].csv").write_text("a,b\n1,2\n")
    (tmp_path / "t1.csv").write_text("a,b\n8,9\n")
    assert query(capsys, "from t", f"t={tmp_path / 't[1].csv'}") == [{"a": 1, "b": 2}]


def test_a_folder_is_no_table(tmp_path, capsys):
    assert "directory" in refusal(capsys, f"t={tmp_path}")


def test_names_of_tables_are_checked(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    file = tmp_path / "t.csv"
    for wrong in (f"T={file}", "t", f"a b={file}", f"={file}", "t="):
        assert "expected NAME=FILE" in refusal(capsys, wrong)
    assert "cases is a table of distbench" in refusal(capsys, f"cases={file}")
    assert "view_time is a table of distbench" in refusal(capsys, f"view_time={file}")
    assert "t is already the table of" in refusal(capsys, f"t={file}", f"t={file}")


@pytest.mark.parametrize("command", ["show", "compare"])
def test_a_file_in_place_of_a_run_is_named_as_one(tmp_path, capsys, command):
    (tmp_path / "nccl.txt").write_text(NCCL_TESTS)
    runs = [str(SAMPLE)] if command == "compare" else []
    assert main([command, *runs, str(tmp_path / "nccl.txt")]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "nccl.txt: a file, not a run's folder; to read a table" in told
    (tmp_path / "suite.yaml").write_text("strategies: [ddp]\n")
    assert main(["show", str(tmp_path / "suite.yaml")]) == 2
    assert "--table" not in capsys.readouterr().err
