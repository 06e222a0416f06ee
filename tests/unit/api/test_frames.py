"""Tables in the forms of other libraries: the same values, and null where one is absent."""

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import polars
import pyarrow
import pytest

import distbench as db
from distbench.api.frames import LIBRARIES, query_frame, table_frame
from distbench.query import QueryResult
from distbench.tables.table import Field, Table, TableRow

SAMPLE = Path(__file__).parents[3] / "reports" / "sample"
CLASSES: dict[str, type] = {"pandas": pandas.DataFrame, "polars": polars.DataFrame, "arrow": pyarrow.Table}
TABLE = Table(
    "t",
    "c",
    (
        Field("name", "name", type="varchar"),
        Field("seconds", "s"),
        Field("calls", "n", type="bigint"),
        Field("ok", "ok", type="boolean"),
    ),
    (TableRow({"name": "a", "seconds": 0.5, "calls": 2**60 + 1, "ok": True}), TableRow({"name": "b"})),
)


def rows(frame: Any) -> list[dict[str, Any]]:
    """Rows of *frame*, with None for what it says is absent."""
    if isinstance(frame, pandas.DataFrame):
        return [
            {key: None if pandas.isna(value) else value for key, value in row.items()}
            for row in frame.to_dict("records")
        ]
    return frame.to_dicts() if isinstance(frame, polars.DataFrame) else frame.to_pylist()


@pytest.mark.parametrize("form", LIBRARIES)
def test_absent_values_are_null_and_integers_are_exact(form):
    frame = table_frame(TABLE, form)
    assert isinstance(frame, CLASSES[form])
    assert rows(frame) == TABLE.records() == table_frame(TABLE, "records")
    assert rows(frame)[1] == {"name": "b", "seconds": None, "calls": None, "ok": None}


@pytest.mark.parametrize("form", LIBRARIES)
def test_a_table_without_rows_has_its_columns_and_types(form):
    full, empty = (table_frame(replace(TABLE, rows=rows), form) for rows in (TABLE.rows, ()))
    assert len(empty) == 0
    if form == "arrow":
        assert empty.schema == full.schema
    else:
        assert list(empty.columns) == list(full.columns)
        assert list(empty.dtypes) == list(full.dtypes)


def test_every_table_of_a_run_has_a_form_and_each_form_the_rows_of_its_records():
    run = db.load(SAMPLE)
    assert len(run.tables) > 20
    # one form for each table, in turn: most of the time is that of the queries
    for name, form in zip(run.tables, itertools.cycle(LIBRARIES), strict=False):
        frame, plain = run.table(name, form), run.table(name, "records")
        assert isinstance(frame, CLASSES[form])
        assert len(frame) == len(plain)
    for form in LIBRARIES:
        assert rows(run.table("trials", form)) == run.table("trials", "records")
        assert len(run.table("steps", form)) > 50


@pytest.mark.parametrize("form", LIBRARIES)
def test_a_column_of_an_unknown_type_keeps_its_values(form):
    frame = query_frame(QueryResult(("a",), ("INTEGER[]",), [([1, 2],), (None,)]), form)
    (first, second) = frame["a"].to_pylist() if form == "arrow" else list(frame["a"])
    assert (list(first), second) == ([1, 2], None)


def test_without_a_word_the_form_is_the_first_one_installed(monkeypatch):
    forms = [type(table_frame(TABLE, None))]
    for library in LIBRARIES.values():
        monkeypatch.setitem(sys.modules, library, None)
        if library != "pyarrow":
            forms.append(type(table_frame(TABLE, None)))
    assert forms == list(CLASSES.values())
    with pytest.raises(db.UsageError) as caught:
        table_frame(TABLE, None)
    assert str(caught.value) == (
        "as_: none of pandas, polars and pyarrow is installed; install one, or use as_='records' for a list "
        "of mappings"
    )
    with pytest.raises(db.UsageError) as caught:
        table_frame(TABLE, "arrow")
    assert str(caught.value) == "as_ = 'arrow': needs pyarrow; install it with: pip install pyarrow"
    assert table_frame(TABLE, "records") == TABLE.records()
