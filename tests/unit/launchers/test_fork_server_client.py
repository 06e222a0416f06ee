"""The wait for a fork server's imports: what counts, on a busy machine and on a quiet one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distbench.launchers.base import LaunchError
from distbench.launchers.fork_server_client import ForkServerClient

LIMIT_S = 3.0
COMPUTES = "import time\nwhile time.process_time() < 1.0: pass\n"
WAITS = f"import time\ntime.sleep({3 * LIMIT_S})\n"


@pytest.fixture
def crowded_core() -> Iterator[None]:
    """Have this process, and what it starts, share one core with four that compute."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    yield
    for each in burners:
        each.kill()
        each.wait()
    os.sched_setaffinity(0, cores)


def server(folder: Path, imported: str) -> ForkServerClient:
    (folder / "imported_here.py").write_text(imported)
    variables = {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}
    return ForkServerClient(("imported_here",), variables, folder / "log", LIMIT_S)


@pytest.mark.usefixtures("crowded_core")
def test_time_in_which_other_processes_have_the_core_is_not_the_imports(tmp_path):
    # 1 s of CPU time takes about 5 s beside four others
    started = server(tmp_path, COMPUTES)
    assert started.alive
    started.close()


def test_imports_that_wait_are_given_up_in_time(tmp_path):
    with pytest.raises(LaunchError, match=rf"was not ready within {LIMIT_S:g} s"):
        server(tmp_path, WAITS)
