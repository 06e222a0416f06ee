"""Logs of ranks that print without end: what is left of them, and that the rank is not disturbed."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from distbench.ipc.trial_files import log_file
from distbench.system.log_files import KEPT_HEAD_BYTES, KEPT_TAIL_BYTES, MAX_LOG_BYTES, BoundedLogs, read_tail
from support.runs import QUICK, run_in


class LogWriter:
    """A log that a rank appends to."""

    def __init__(self, folder: Path) -> None:
        self.file = log_file(folder, 0)
        self.logs = BoundedLogs([self.file])
        self._stream = self.file.open("ab", buffering=0)

    def prints(self, text: str) -> None:
        self._stream.write(text.encode())

    def prints_much(self) -> None:
        """Zeros, which take no room on the disk."""
        os.truncate(self.file, self.file.stat().st_size + MAX_LOG_BYTES)

    def close(self) -> None:
        self._stream.close()


@pytest.fixture
def log_writer(tmp_path) -> Iterator[LogWriter]:
    made = LogWriter(tmp_path)
    yield made
    made.close()


def test_of_a_log_that_is_too_long_begin_and_end_are_left_and_it_goes_on(log_writer):
    log_writer.prints("it begins\n")
    log_writer.prints_much()
    log_writer.prints("it fails\n")
    size = log_writer.file.stat().st_size
    log_writer.logs.trim()
    log_writer.prints("it ends\n")
    text = log_writer.file.read_text()
    assert text.startswith("it begins\n")
    assert text.endswith("\0it fails\nit ends\n")
    assert (
        f"\n[distbench removed {size - KEPT_HEAD_BYTES - KEPT_TAIL_BYTES:,} bytes here: logs are "
        "limited to 64 MiB]\n" in text
    )
    assert len(text) < KEPT_HEAD_BYTES + KEPT_TAIL_BYTES + 100


def test_what_several_cuts_left_out_is_told_in_one_place(log_writer):
    for _ in range(3):
        log_writer.prints_much()
        log_writer.logs.trim()
    (told,) = re.findall(r"removed ([\d,]+) bytes", log_writer.file.read_text())
    assert int(told.replace(",", "")) == 3 * MAX_LOG_BYTES - KEPT_HEAD_BYTES - KEPT_TAIL_BYTES


def test_a_log_within_its_limit_stays_as_it_is(log_writer):
    os.truncate(log_writer.file, MAX_LOG_BYTES)
    log_writer.logs.trim()
    assert log_writer.file.stat().st_size == MAX_LOG_BYTES


def test_a_rank_that_has_not_started_has_no_log_to_cut(tmp_path):
    BoundedLogs([tmp_path / "rank0.log"]).trim()
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_a_log_that_grows_meanwhile_is_no_longer_than_asked(log_writer):
    log_writer.prints("abcdef")
    assert read_tail(log_writer.file, 4) == "cdef"
    assert read_tail(log_writer.file, 400) == "abcdef"
    assert read_tail(log_writer.file.with_name("rank1.log"), 4) == ""


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.drill("rank 1 prints without end")
def test_a_rank_that_prints_without_end_goes_on_and_fills_no_disk(tmp_path, drill):
    suite = QUICK.replace("small:Small", "ends:PrintsWithoutEnd") + "launcher: local\nstrategies: [ddp]\n"
    record = run_in(tmp_path, suite).record("ddp")
    drill.seen(record["reason"])
    (log,) = tmp_path.glob("out/*/trials/*/0/rank1.log")
    text = log.read_text()
    assert "it stopped when its log had" in record["reason"]
    assert "[distbench removed" in text
    assert record["reason"].partition("RuntimeError: ")[2] in text.splitlines()[-1], "its end is there"
    assert len(text) < MAX_LOG_BYTES
