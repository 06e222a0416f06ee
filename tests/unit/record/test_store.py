"""Runs on disk: whole files or none, and a message for every way in which one can't be read."""

import hashlib
import json
import math
import resource
from collections.abc import Iterator
from dataclasses import replace

import duckdb
import pytest

from distbench.core.errors import InfrastructureError, RecordError, UsageError
from distbench.record import FORMAT_VERSION, Status, parquet
from distbench.record.batch_reads import BatchReader, BatchReaders
from distbench.record.record_reader import read_record
from distbench.record.run_folder import Run, write_json
from distbench.system.files import slug
from support.records import case, failed, info, measured, stored_run


@pytest.fixture
def run(tmp_path) -> Run:
    return Run.create(tmp_path, info(case()), "strategies: [ddp]\n")


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 4 KiB: what a full disk looks like to a program."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("record", [measured(case()), failed(case())], ids=["measured", "failed"])
def test_a_record_comes_back_as_it_was_written(run, record):
    run.write_record(record)
    assert list(run.records()) == [record]


ROWS = [
    {"rank": 0, "op": "all_reduce", "bytes": 8, "share": 0.5, "whole": True, "note": None},
    {"rank": 1, "op": None, "bytes": None, "share": 1.0, "whole": None, "note": None},
]


def test_samples_and_tables_stand_beside_the_record_as_parquet_that_tells_what_it_is(run):
    run.write_record(measured(case()))
    (folder,) = run.folder.glob("trials/*/0")
    assert sorted(file.name for file in folder.iterdir()) == ["record.json", "samples.parquet"]
    assert "3.0" not in (folder / "record.json").read_text()
    samples = str(folder / "samples.parquet")
    rows = duckdb.execute("from read_parquet(?)", [samples]).fetchall()
    assert rows == [("loss", 0, 0, 3.0), ("loss", 0, 1, 2.5), ("loss", 1, 0, 3.0), ("loss", 1, 1, 2.5)]
    ((told,),) = duckdb.execute("select value from parquet_kv_metadata(?)", [samples]).fetchall()
    about = json.loads(told)
    assert about["case"] == "ddp/ws2/mb4/fp32"
    assert about["columns"]["loss"] == {"unit": "", "better": None, "doc": "Loss of a step."}


def test_what_is_not_known_what_is_not_a_number_and_what_was_not_given_stay_apart(run):
    samples = {"loss": [[3.0, None, math.nan, math.inf], []], "none": [[], []]}
    run.write_record(replace(measured(case()), samples=samples))
    (record,) = run.records()
    assert record.samples["loss"][0][:2] == [3.0, None]
    assert [str(value) for value in record.samples["loss"][0][2:]] == ["nan", "inf"]
    assert record.samples["loss"][1] == []
    assert record.samples["none"] == [[], []]


@pytest.mark.parametrize("name", ["collectives", "samples", "../../evil", "", "Ops", "x" * 300])
def test_the_rows_of_a_table_come_back_with_their_types_whatever_its_name(run, name):
    run.write_record(replace(measured(case()), tables={name: ROWS, "ops": [], "ops!": ROWS[:1]}))
    (record,) = run.records()
    assert record.tables == {name: ROWS, "ops": [], "ops!": ROWS[:1]}
    assert [type(value) for value in record.tables[name][0].values()] == [
        int,
        str,
        int,
        float,
        bool,
        type(None),
    ]
    assert {file.parent.name for file in run.folder.rglob("*.parquet")} == {"0"}


def test_rows_of_any_keys_and_types_come_back_with_their_own_keys(run):
    rows = [
        {"Op": 1, "op": "x", "": [1, {"a": None}], 'q"': "it's"},
        {"op": 2, "large": 1 << 70},
        {"op": None},
    ]
    run.write_record(replace(measured(case()), tables={"odd": rows, "nothing": [{}]}))
    (record,) = run.records()
    assert record.tables == {"odd": rows, "nothing": []}


def test_a_trial_that_is_run_again_overwrites_the_files_of_the_one_that_was_cut_off(run):
    run.write_record(replace(measured(case()), samples={"loss": [[9.0]]}, tables={"collectives": ROWS}))
    (folder,) = run.folder.glob("trials/*/0")
    (folder / "record.json").unlink()
    assert list(run.records()) == []
    run.write_record(measured(case()))
    assert list(run.records()) == [measured(case())]


def test_a_record_of_the_first_format_is_read_with_what_is_in_it(run):
    (folder,) = (run.folder / "trials" / "old" / "0",)
    folder.mkdir(parents=True)
    old = replace(measured(case()), tables={"collectives": ROWS})
    inline = {"samples": dict(old.samples), "tables": dict(old.tables)}
    write_json(folder / "record.json", {**old.to_json(inline), "format": 1})
    assert list(run.records()) == [old]


@pytest.mark.parametrize("name", ["samples.parquet", "collectives.parquet"])
@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda file: file.unlink(), "missing, but record.json refers to it"),
        (lambda file: file.write_bytes(b""), "corrupt"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "corrupt"),
        (lambda file: file.write_bytes(file.read_bytes().replace(b"loss", b"lass")), "corrupt"),
    ],
    ids=["missing", "empty", "torn", "changed"],
)
def test_a_parquet_file_that_is_not_what_was_written_is_named(run, name, harm, told):
    run.write_record(replace(measured(case()), tables={"collectives": [{"op": "loss"}]}))
    (file,) = run.folder.glob(f"trials/*/0/{name}")
    harm(file)
    with pytest.raises(RecordError, match=told) as caught:
        run.record(case(), 0)
    assert str(file) in str(caught.value)


def test_a_foreign_file_of_the_right_digest_that_is_no_parquet_is_named(run):
    run.write_record(measured(case()))
    (file,) = run.folder.glob("trials/*/0/samples.parquet")
    record = file.parent / "record.json"
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    file.write_bytes(b"PAR1")
    record.write_text(record.read_text().replace(before, hashlib.sha256(b"PAR1").hexdigest()))
    (found,) = run.records()
    with pytest.raises(RecordError, match="corrupt: not a Parquet file") as caught:
        dict(found.samples)
    assert str(file) in str(caught.value)


def test_a_record_names_no_file_outside_of_its_folder(run):
    run.write_record(measured(case()))
    (record,) = run.folder.glob("trials/*/0/record.json")
    record.write_text(record.read_text().replace("samples.parquet", "../../../samples.parquet"))
    with pytest.raises(RecordError, match=r"record\.json refers to a file"):
        run.record(case(), 0)


def test_a_disk_that_is_full_leaves_no_half_trial(run, small_files):
    many = {"loss": [[float(step) for step in range(10_000)]]}
    with pytest.raises(InfrastructureError, match=r"distbench run --resume"):
        run.write_record(replace(measured(case()), samples=many))
    assert list(run.records()) == []
    assert not [file for file in run.folder.rglob("*") if "parquet" in file.name]


@pytest.mark.parametrize("folder", ["a[1]*", "key=value", "it's", "~"])
def test_a_run_lies_in_a_folder_of_any_name(tmp_path, folder):
    run = stored_run(tmp_path / folder, measured(case()))
    assert list(run.records()) == [measured(case())]


def test_a_run_comes_back_as_it_was_written(run):
    assert run.info() == info(case())


def test_a_disk_that_is_full_keeps_the_old_file_and_says_how_to_go_on(run, small_files):
    before = (run.folder / "run.json").read_text()
    with pytest.raises(InfrastructureError, match=r"distbench run --resume"):
        write_json(run.folder / "run.json", {"big": "x" * 100_000})
    assert (run.folder / "run.json").read_text() == before
    assert not list(run.folder.glob(".run.json*"))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "the file is empty"),
        ('{"format": 1,', "corrupt: not valid JSON: line 1"),
        ("[]", "not a distbench file"),
        pytest.param(
            json.dumps({"format": FORMAT_VERSION + 1}),
            "written by a newer distbench",
            marks=pytest.mark.drill("a record of a newer format"),
        ),
        (json.dumps({"format": 0}), "too old"),
        (json.dumps({"format": FORMAT_VERSION, "status": "measured"}), "samples is missing"),
        ("[" * 100_000, "corrupt"),
    ],
)
def test_a_record_that_can_not_be_read_names_the_file_and_the_reason(run, content, told):
    run.write_record(measured(case()))
    (file,) = run.folder.glob("trials/*/0/record.json")
    file.write_text(content)
    with pytest.raises(RecordError, match=told) as caught:
        run.record(case(), 0)
    assert str(file) in str(caught.value)


def test_a_folder_without_a_run_is_no_run(tmp_path):
    with pytest.raises(UsageError, match=r"run\.json is missing"):
        Run(tmp_path).info()


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "a/b", "\u202e\x1b[31m", "x" * 500])
def test_a_name_becomes_one_safe_file_name(name):
    made = slug(name)
    assert made and len(made) <= 64
    assert not set(made) - set("abcdefghijklmnopqrstuvwxyz0123456789._+-")
    assert not made.startswith(".")


def test_a_record_whose_warm_up_was_not_finite_is_read_back(tmp_path):
    broken = replace(measured(case()), status=Status.INVALID_NAN, warmup_losses=[[None], [3.0]])
    (stored,) = stored_run(tmp_path, broken).records()
    assert stored.warmup_losses == [[None], [3.0]]


def test_samples_of_trials_read_together_are_those_that_each_had(run):
    # whole numbers are stored as such: by the types of the first file, 1.5 would be read as 2
    of_trials: list[dict[str, list[list[float | None]]]] = [
        {"loss": [[1, 2], [3, 4]]},
        {"loss": [[1.5], [None]]},
        {"loss": [[2.5], []], "step_s": [[9]]},
    ]
    for round_, samples in enumerate(of_trials):
        run.write_record(replace(measured(case(), round_=round_), samples=samples))
    assert [{**record.samples} for record in run.records()] == of_trials


@pytest.mark.parametrize("count", [3, 40])
def test_the_file_of_a_table_is_read_once_however_often_its_rows_are_asked_for(run, count):
    read = []

    def tables(files, how, most):
        read.extend(files)
        return parquet.read_tables(files, how[1], most)

    for round_ in range(count):
        rows = [{**row, "bytes": round_} for row in ROWS]
        run.write_record(replace(measured(case()), round=round_, tables={"ops": rows}))
    readers = BatchReaders(tables=BatchReader(tables))
    records = [read_record(folder / "record.json", readers).record for folder in run.recorded_trials()]
    for _ in range(2):
        assert [record.tables["ops"][1]["bytes"] for record in records] == [each.round for each in records]
        assert [{**record.tables["ops"][0], "bytes": 8} for record in records] == [ROWS[0]] * count
    assert sorted(read) == sorted(run.folder.glob("trials/*/*/ops.parquet"))
    assert len(read) == count
