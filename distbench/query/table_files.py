"""Tables from files of other tools, beside those of runs: CSV, and the output of nccl-tests."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distbench.core.errors import UsageError
from distbench.query.loader import create_table
from distbench.query.tables import SqlColumn, SqlTable
from distbench.record import RecordRow
from distbench.record.parquet import first_line, quote_identifier
from distbench.system.files import read_bounded

if TYPE_CHECKING:
    import duckdb

_MAX_BYTES = 1 << 26
"""Maximum size of a file: its table is held in memory."""
_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_NCCL_TESTS_HEADER = re.compile(r"^#\s+size\s+count\s+type\b.*\balgbw\s+busbw\b", re.MULTILINE)
_DTYPES = {"float": "fp32", "half": "fp16", "bfloat16": "bf16", "double": "fp64"}
"""Type as nccl-tests names it -> as records do."""
_NCCL_TESTS_COLUMNS = (
    SqlColumn("bytes", "bigint", "Size of the full array.", "B"),
    SqlColumn("count", "bigint", "Elements as nccl-tests counts."),
    SqlColumn("dtype", "varchar", "Dtype of the elements, by its name in records where it has one."),
    SqlColumn("redop", "varchar", "Reduction."),
    SqlColumn("root", "bigint", "Root; -1: the operation has none."),
    SqlColumn("in_place", "boolean", "Whether input and output are one buffer."),
    SqlColumn("seconds", "double", "Time of a call.", "s"),
    SqlColumn("algbw", "double", "bytes over seconds.", "B/s"),
    SqlColumn("busbw", "double", "algbw times the factor of the operation.", "B/s"),
    SqlColumn("wrong", "bigint", "Elements with a wrong result; null: not checked."),
)
"""Columns and units of ``collective_times`` that the output has."""
_LEADING_FIELDS, _FIELDS_PER_PLACE = 5, 4


def parse_table_options(texts: Sequence[str]) -> dict[str, Path]:
    """Files by the name of their table, from texts such as ``nccl=nccl.txt``.

    Raises:
        UsageError: a text has another form, a name is no plain lower-case word, or is given twice.
    """
    files: dict[str, Path] = {}
    for text in texts:
        name, _, file = text.partition("=")
        if not _NAME.fullmatch(name) or not file:
            raise UsageError(
                f"--table {text}: expected NAME=FILE, such as nccl=nccl.txt, with a name of lower-case "
                "letters, digits and _"
            )
        if name in files:
            raise UsageError(f"--table {text}: {name} is already the table of {files[name]}")
        files[name] = Path(file)
    return files


def add_table(database: duckdb.DuckDBPyConnection, name: str, file: Path) -> SqlTable:
    """Create the table *name* from *file*, and return its description.

    Raises:
        UsageError: the file can't be read, is no table, or is larger than 64 MiB.
    """
    import duckdb

    try:
        content = read_bounded(file, _MAX_BYTES, follow=True)
        text = content.decode()
    except OSError as error:
        raise UsageError(f"--table {name}={file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--table {name}={file}: not UTF-8 text") from error
    if _NCCL_TESTS_HEADER.search(text):
        create_table(database, name, _NCCL_TESTS_COLUMNS, list(_nccl_tests_rows(text)))
        doc = f"Output of nccl-tests in {file}, in the units of collective_times."
        return SqlTable(name, doc, _NCCL_TESTS_COLUMNS)
    kinds = "neither CSV with a header nor the output of nccl-tests"
    try:
        # a copy: DuckDB takes brackets and stars in the name of the file for a pattern
        with tempfile.NamedTemporaryFile(suffix=".csv") as copy:
            copy.write(content)
            copy.flush()
            database.execute(
                f"create table {quote_identifier(name)} as from read_csv(?, sample_size = -1, header = true)",
                [copy.name],
            )
    except duckdb.Error as error:
        raise UsageError(f"--table {name}={file}: {kinds}: {first_line(error)}") from error
    # of text that is no table, DuckDB makes one column
    if len(database.table(name).columns) < 2:
        raise UsageError(f"--table {name}={file}: {kinds}: it has one column")
    return SqlTable(name, f"Rows of {file}.", ())


def _nccl_tests_rows(text: str) -> Iterator[RecordRow]:
    """Rows of nccl-tests' output, two for each of its lines: out of place and in place.

    Times are in µs there, and bandwidths in GB/s (10^9 bytes; nccl-tests, src/common.cu).
    """
    for line in text.splitlines():
        fields = line.split()
        if not fields or not fields[0].isdigit() or len(fields) < _LEADING_FIELDS + _FIELDS_PER_PLACE:
            continue
        size, count, dtype, redop, root = fields[:_LEADING_FIELDS]
        shared = {"bytes": int(size), "count": _number(count), "dtype": _DTYPES.get(dtype, dtype)}
        shared |= {"redop": redop, "root": _number(root)}
        for in_place in (False, True):
            start = _LEADING_FIELDS + in_place * _FIELDS_PER_PLACE
            if len(fields) < start + _FIELDS_PER_PLACE:
                continue
            time, algbw, busbw, wrong = map(_number, fields[start : start + _FIELDS_PER_PLACE])
            yield {
                **shared,
                "in_place": in_place,
                "seconds": None if time is None else time / 1e6,
                "algbw": None if algbw is None else algbw * 1e9,
                "busbw": None if busbw is None else busbw * 1e9,
                "wrong": wrong,
            }


def _number(text: str) -> float | None:
    """Number in *text*; None for ``N/A`` and other words."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
