"""A node without a shared file system whose own disk takes no more."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from support.fault_table import Drill
from support.network_nodes import Bench
from support.two_node_faults import prepared

_CHUNK = 1 << 12


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """*folder* is a disk of *size* of its own."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave no byte of the disk of *folder*; the file that takes all of it."""
    file = folder / "ballast"
    with file.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(_CHUNK))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    return file


@pytest.mark.drill("two nodes: the own disk of one is full")
def test_a_node_whose_disk_is_full_is_named(tmp_path: Path, drill: Drill) -> None:
    out, scratch = tmp_path / "out", tmp_path / "scratch"
    with closing(Bench(tmp_path, private=[out, scratch])) as bench:
        first, full = bench.nodes
        kept, disk = tmp_path / "private" / first / "0", tmp_path / "private" / full / "1"
        variables = {"TMPDIR": str(scratch)}
        with (
            small_disk(disk, "64m"),
            prepared(
                bench,
                bench.ssh(),
                tmp_path,
                options=", forward: [TMPDIR]",
                variables=variables,
                kept=kept,
            ) as run,
        ):
            run.start()
            run.strikes()
            ballast = fill(disk)
            assert run.ends() == 4
            (line,) = (line for line in run.log().splitlines() if "distbench: error: " in line)
            drill.seen(line)
            assert "the disk of a node is full: measure " in line and ", round 2, failed (" in line
            assert "No space left on device" in line and full in line
            assert run.statuses() == ["measured"]
            assert not run.left()
            ballast.unlink()
            assert run.resume() == 0, run.log()
            assert run.statuses() == ["measured"] * 3
