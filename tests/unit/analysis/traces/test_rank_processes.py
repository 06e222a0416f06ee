"""Traces of several ranks are read in processes of their own, with the answers and errors of this one."""

import shlex
import sys
from pathlib import Path

import pytest

from distbench.analysis.traces.rank_processes import RankFile, process_count, read_ranks
from distbench.core.errors import InfrastructureError
from distbench.traces.chrome_file import TraceFileError
from support.chrome_traces import ChromeTrace, training_step

MB = 1 << 20


def written(folder: Path, rank: int, size: int = 9 * MB) -> RankFile:
    """File of *rank*, which spaces make so large that it is read in a process of its own."""
    trace = training_step()
    trace.rank = rank
    file = trace.write(folder / f"rank{rank}.json")
    with file.open("ab") as end:
        end.write(b" " * size)
    return RankFile(file, 0)


def interpreter(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Let *line* of a shell stand before the interpreter that processes are started with."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\n{line}\nexec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def test_large_files_are_read_in_other_processes_with_the_same_answers_in_their_order(tmp_path, monkeypatch):
    interpreter(tmp_path, monkeypatch, f"echo started >> {shlex.quote(str(tmp_path / 'log'))}")
    files = [written(tmp_path, rank) for rank in (1, 0, 2)]
    read = [*read_ranks(files)]
    assert (tmp_path / "log").read_text().splitlines() == ["started"] * 3
    assert [rank.rank for rank in read] == [1, 0, 2]
    assert read == [file.read() for file in files]


def test_a_process_that_is_killed_is_an_error_of_the_machine(tmp_path, monkeypatch):
    interpreter(tmp_path, monkeypatch, "kill -9 $$")
    files = [written(tmp_path, rank) for rank in (0, 1)]
    with pytest.raises(
        InfrastructureError, match=r"rank0\.json: the process that read it was killed by SIGKILL; if"
    ):
        [*read_ranks(files)]


def test_an_error_in_another_process_reads_as_here(tmp_path):
    first, second = written(tmp_path, 0), written(tmp_path, 1)
    second.path.write_bytes(b'{"traceEvents": [17]}' + b" " * 9 * MB)
    with pytest.raises(TraceFileError) as here:
        second.read()
    with pytest.raises(TraceFileError) as there:
        [*read_ranks([first, second])]
    assert str(there.value) == str(here.value) and str(second.path) in str(here.value)


def test_after_an_error_no_other_process_goes_on(tmp_path, monkeypatch):
    first, second = written(tmp_path, 0), written(tmp_path, 1)
    first.path.write_bytes(b'{"traceEvents": [17]}' + b" " * 9 * MB)
    marker, given = tmp_path / "marker", shlex.quote(str(tmp_path / "given"))
    python = shlex.quote(sys.executable)
    # that of the second file takes long
    slow = shlex.quote(f"import time; time.sleep(15); open({str(marker)!r}, 'w')")
    line = f"cat > {given}.$$; grep -aq rank1 {given}.$$ && exec {python} -c {slow}"
    interpreter(tmp_path, monkeypatch, f'{line}; exec {python} "$@" < {given}.$$')
    with pytest.raises(TraceFileError, match=r"rank0\.json"):
        [*read_ranks([first, second])]
    assert not marker.exists()


def test_a_file_has_the_bytes_that_it_takes_uncompressed(tmp_path):
    trace = ChromeTrace().kernel("gemm", 1, 2, 3)
    plain, compressed = (trace.write(tmp_path / name) for name in ("rank0.json", "rank1.json.gz"))
    assert RankFile(compressed, 0).text_bytes == RankFile(plain, 0).text_bytes == plain.stat().st_size
    assert RankFile(tmp_path / "no.json", 0).text_bytes == 0


@pytest.mark.parametrize(
    ("sizes", "cores", "free", "count"),
    [
        ([100 * MB] * 4, 2, 64 << 30, 2),
        ([100 * MB] * 4, 8, 64 << 30, 4),
        # 3.5 times the file and what a process takes itself
        ([1 << 30] * 8, 8, 8 << 30, 2),
        # the largest decide
        ([1 << 30, MB, MB, 1 << 30], 8, 5 << 30, 1),
        ([1 << 30] * 2, 2, 0, 1),
    ],
)
def test_as_many_processes_as_cores_and_memory_allow(sizes, cores, free, count):
    assert process_count(sizes, cores, free) == count
