"""A pytest inside of a test, forked from a process that has imported what a run of a suite needs.

pytester has one in the process of the test, which forgets what it imported and imports it again (duckdb and
numpy do not survive it), and one in a process of its own, which imports for two seconds.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.popen_forkserver  # or pytester forgets it, and its server, after each test
import os
import sys
import time
from pathlib import Path

import pytest

_PRELOADED = ["distbench.api.suite_run", "distbench.report.page", "duckdb"]


def run_inside(folder: Path, *arguments: str) -> pytest.RunResult:
    """Run pytest with *arguments* in *folder*, with the environment of this process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    files = folder / "stdout", folder / "stderr"
    began = time.perf_counter()
    process = context.Process(target=_session, args=(folder, files, dict(os.environ), arguments))
    process.start()
    process.join()
    code = process.exitcode
    assert code is not None
    process.close()
    shown, errors = (file.read_text().splitlines() for file in files)
    return pytest.RunResult(code, shown, errors, time.perf_counter() - began)


def _session(
    folder: Path, files: tuple[Path, Path], environment: dict[str, str], arguments: tuple[str, ...]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = ["", *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    for descriptor, file in enumerate(files, start=1):
        with file.open("w") as stream:
            os.dup2(stream.fileno(), descriptor)
    raise SystemExit(pytest.main([*arguments]))
