"""Runs where the system gives little: descriptors, processes, shared memory, and permissions of new files."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.runs import MODELS, QUICK

pytestmark = pytest.mark.deep

PIDS = Path("/sys/fs/cgroup/pids")


def run_under(shell: str, folder: Path, **variables: str) -> tuple[int, dict[str, Any]]:
    """Run a suite of one case where *shell* has set up what it likes; return exit code and the case's row."""
    suite = folder / "suite.yaml"
    suite.write_text(QUICK + "launcher: local\nstrategies: [ddp]\n")
    command = [sys.executable, "-m", "distbench", "run", str(suite), "--out", str(folder / "out"), "--json"]
    done = subprocess.run(
        ["sh", "-c", f'{shell} && exec "$@"', "sh", *command],
        cwd=MODELS,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    (case,) = json.loads(done.stdout)["cases"]
    return done.returncode, case


@pytest.mark.drill("64 open files a process")
def test_few_descriptors_are_enough(tmp_path, drill):
    code, case = run_under("ulimit -n 64", tmp_path)
    drill.seen(case["status"])
    assert (code, case["status"]) == (0, "measured")


@pytest.mark.drill("20 open files a process")
def test_too_few_descriptors_are_named(tmp_path, drill):
    code, case = run_under("ulimit -n 20", tmp_path)
    drill.seen(case["reason"])
    assert code == 1
    assert "Too many open files" in case["reason"]


@pytest.fixture
def cell() -> Iterator[Path]:
    """A cgroup of processes, to be limited."""
    made = PIDS / f"distbench-drill-{os.getpid()}"
    made.mkdir()
    yield made
    made.rmdir()


@pytest.mark.drill("no more than 10 tasks in a cgroup")
def test_too_few_processes_are_named(tmp_path, cell, drill):
    (cell / "pids.max").write_text("10")
    code, case = run_under(f"echo $$ > {cell}/cgroup.procs", tmp_path)
    drill.seen(case["reason"])
    assert code == 1
    assert "Resource temporarily unavailable" in case["reason"]


@pytest.mark.drill("/dev/shm of 4 KiB")
def test_a_small_shared_memory_is_enough(tmp_path, drill):
    own = 'exec unshare --mount sh -c \'mount -t tmpfs -o size=4k none /dev/shm && exec "$@"\' sh "$@" #'
    code, case = run_under(own, tmp_path)
    drill.seen(case["status"])
    assert (code, case["status"]) == (0, "measured")


@pytest.mark.drill("HOME unset, umask 077, and a cold cache with blanks and é in its name")
def test_what_is_written_is_for_its_owner_where_the_umask_says_so(tmp_path, drill):
    cache = tmp_path / "a cache, é"
    code, case = run_under("unset HOME && umask 077", tmp_path, DISTBENCH_CACHE=str(cache))
    drill.seen(case["status"])
    assert (code, case["status"]) == (0, "measured")
    written = [file for place in (tmp_path / "out", cache) for file in place.rglob("*")]
    assert written
    open_to_others = [file for file in written if stat.S_IMODE(file.lstat().st_mode) & 0o077]
    assert not open_to_others
