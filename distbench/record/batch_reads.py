"""Read many small Parquet files per DuckDB query: most of the time of one is that of the query."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from distbench.core.errors import RecordError
from distbench.record import RecordRow, parquet

T = TypeVar("T")
ReadKey = tuple[Hashable, ...]

_MIN_BATCH, _MAX_BATCH = 8, 128
"""Numbers of files that are read together: fewer take less time one by one."""
_MAX_RECENT = 16
"""Number of tables whose rows are kept: a view asks for those of one case at a time."""
_MAX_BATCHED_BYTES = 1 << 20
"""Maximum bytes of a file that is read with others."""


class BatchReader(Generic[T]):
    """Reads files in batches: the requested one with similar ones added after it."""

    def __init__(self, read: Callable[[Sequence[Path], Any, int], dict[Path, T]]) -> None:
        """Create a reader.

        *read* takes similar files, what they were added with, and the number of rows allowed.
        """
        self._read = read
        self._pending: dict[ReadKey, dict[Path, None]] = defaultdict(dict)
        self._contents: dict[tuple[Path, ReadKey], T] = {}

    def add(self, file: Path, *how: Hashable) -> None:
        """Add a *file* that may be read together with others of equal *how*."""
        self._pending[how][file] = None

    def read(self, file: Path, *how: Hashable) -> T:
        """Content of *file*, which was added before.

        Raises:
            RecordError: it can't be read, or holds more than any that distbench writes.
        """
        key = file, how
        if file in self._pending[how]:
            self._read_batch(file, how)
        if key in self._contents:
            return self._contents.pop(key)
        return self._read([file], how, parquet.MAX_VALUES)[file]

    def _read_batch(self, first: Path, how: ReadKey) -> None:
        """Read *first* and files after it; errors are raised when the file itself is requested."""
        pending = self._pending[how]
        like = [*itertools.islice(itertools.dropwhile(lambda file: file != first, pending), _MAX_BATCH)]
        for file in like:
            del pending[file]
        if len(like) < _MIN_BATCH:
            return
        made: dict[Path, T] = {}
        try:
            for alike in parquet.group_by_schema(
                [file for file in like if file.stat().st_size <= _MAX_BATCHED_BYTES]
            ):
                made |= self._read(alike, how, parquet.MAX_VALUES // 16)
        except (RecordError, OSError):
            # each is read alone
            return
        self._contents |= {(file, how): content for file, content in made.items()}


def _samples(
    files: Sequence[Path], how: tuple[tuple[str, ...]], max_values: int
) -> dict[Path, parquet.SampleRows]:
    return parquet.read_samples(files, *how, max_values)


def _tables(
    files: Sequence[Path], how: tuple[str, Sequence[str] | None], max_values: int
) -> dict[Path, list[parquet.ParquetColumn]]:
    return parquet.read_tables(files, how[1], max_values)


class RecentRows:
    """Rows of the tables that were used last: rows take far more memory than columns."""

    def __init__(self) -> None:
        self._rows: dict[Path, list[RecordRow]] = {}

    def get(self, file: Path, make: Callable[[], list[RecordRow]]) -> list[RecordRow]:
        """Rows of *file*; *make* makes them."""
        rows = self._rows.get(file)
        if rows is None:
            rows = make()
            if len(self._rows) >= _MAX_RECENT:
                del self._rows[next(iter(self._rows))]
            self._rows[file] = rows
        return rows


@dataclass(frozen=True)
class BatchReaders:
    """Readers for the files of a run's records."""

    samples: BatchReader[parquet.SampleRows] = field(default_factory=lambda: BatchReader(_samples))
    """Files of samples, added with the names of their columns."""
    tables: BatchReader[list[parquet.ParquetColumn]] = field(default_factory=lambda: BatchReader(_tables))
    """Files of tables, added with the table's name, and its text columns where they are known."""
    recent_rows: RecentRows = field(default_factory=RecentRows)
