"""The checks of tests/gpu: time-outs that a hanging child can't outlast, and what a machine must have.

A check is a test marked ``minutes(limit)``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from importlib.util import find_spec

import pytest

from distbench.system.machine import install_hint, visible_gpu_count
from support.gpu_report import REHEARSAL, Check, Report

# a CPU takes its time for what suits a GPU
_PATIENCE = 5 if REHEARSAL else 1
# for what a check that is stopped has to end: ranks, and their parent
_GRACE_S = 90.0
_GIB = 1 << 30
# without these no suite is read, no record written and no report rendered
_NEEDED = ("torch", "safetensors", "duckdb", "ruamel.yaml", "pydantic", "plotly", "jinja2", "scipy")
# a CPU has room for as many ranks as are asked for
_ANY = 1_000_000
_MARKERS = {
    "minutes(limit)": "a check of tests/gpu, which fails after so many minutes",
    "gpus(count)": "needs so many GPUs; deselected where there are fewer",
    "host_memory(gib)": "needs so much host memory; deselected where there is less",
    "needs(module)": "needs a module that runs do without; deselected where it is not installed",
    "cuda": "asks what only a GPU has; deselected in a rehearsal on a CPU",
}
REPORT = pytest.StashKey[Report]()
_STARTED = pytest.StashKey[float]()


@pytest.fixture
def check(request: pytest.FixtureRequest) -> Check:
    """Row of this check in the report, to which it gives its figures."""
    return request.config.stash[REPORT].checks[_name(request.node)]


@pytest.fixture(scope="session")
def gpu_report(request: pytest.FixtureRequest) -> Report:
    """The report of the session."""
    return request.config.stash[REPORT]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--gpu-report`` and ``--gpu-minutes``."""
    parser.addoption("--gpu-report", default="gpu-report", metavar="FOLDER", help="report of tests/gpu")
    parser.addoption(
        "--gpu-minutes",
        type=float,
        default=40.0,
        metavar="N",
        help="minutes for all checks of tests/gpu together; those that don't fit fail as not reached",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the markers."""
    for name, text in _MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {text}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin the report with a row for each check, and deselect those that this machine can't make."""
    checks = [item for item in items if item.get_closest_marker("minutes")]
    if not checks:
        return
    report = Report(config.rootpath / config.getoption("--gpu-report"), config.getoption("--gpu-minutes"))
    config.stash[REPORT] = report
    lacking = {item: why for item in checks if (why := _lacking(item))}
    for item in checks:
        report.checks[_name(item)] = Check(_name(item))
        if item in lacking:
            row = report.checks[_name(item)]
            row.verdict, row.reason = "skipped", lacking[item]
    items[:] = [item for item in items if item not in lacking]
    config.hook.pytest_deselected(items=list(lacking))


def _lacking(item: pytest.Item) -> str:
    """What this machine lacks for *item*; empty: nothing."""
    if REHEARSAL and item.get_closest_marker("cuda"):
        return "asks what only a GPU has"
    needed = [marker.args[0] for marker in item.iter_markers("needs")]
    if missing := ", ".join(name for name in needed if find_spec(name) is None):
        return f"needs {missing}, not installed here"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    gpus = _ANY if REHEARSAL else visible_gpu_count()
    for name, what, has in (("gpus", "GPUs", gpus), ("host_memory", "GiB of host memory", memory)):
        marker = item.get_closest_marker(name)
        if marker and has < marker.args[0]:
            return f"needs {marker.args[0]:,} {what}, this machine has {has:.0f}"
    return ""


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Refuse to begin without a GPU: that is neither a success nor a failure of distbench."""
    if REPORT not in session.config.stash or session.config.option.collectonly:
        return
    if not (REHEARSAL or visible_gpu_count()):
        raise pytest.UsageError(
            "the checks of tests/gpu need an NVIDIA GPU, and the driver shows none; "
            "DISTBENCH_REHEARSAL=1 tries the checks themselves with the CPU in its place"
        )
    missing = ", ".join(name for name in _NEEDED if find_spec(name.partition(".")[0]) is None)
    if missing and not REHEARSAL:
        raise pytest.UsageError(
            f"the checks of tests/gpu train with distbench, and {missing} are not installed; "
            f"install what it needs {install_hint('train')}"
        )
    session.config.stash[REPORT].write()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Begin the check and its time."""
    item.stash[_STARTED] = time.monotonic()
    with _limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Go on with the check within its time."""
    with _limited(item):
        return (yield)


@contextlib.contextmanager
def _limited(item: pytest.Item) -> Iterator[None]:
    """End the check when its time is up, wherever it waits."""
    marker = item.get_closest_marker("minutes")
    if marker is None:
        yield
        return
    report = item.config.stash[REPORT]
    row = report.checks[_name(item)]
    own_s = 60 * marker.args[0] * _PATIENCE - (time.monotonic() - item.stash[_STARTED])
    left_s = report.left_s
    if left_s <= 0:
        pytest.fail("not reached: the time of --gpu-minutes is over", pytrace=False)
    row.verdict = "running"
    report.write()

    def stop(*_: object) -> None:
        row.verdict = "timed out"
        whose = f"its limit of {marker.args[0]:g} min" if own_s <= left_s else "--gpu-minutes"
        pytest.fail(f"stopped: {whose} was over")

    with _alarm(max(0.01, min(own_s, left_s)), stop, report):
        yield


@contextlib.contextmanager
def _alarm(seconds: float, stop: Callable[..., None], report: Report) -> Iterator[None]:
    """Call *stop* after *seconds*; end pytest itself if even what that raises gets stuck."""
    before = signal.signal(signal.SIGALRM, stop)
    with report.stacks() as stacks:
        faulthandler.dump_traceback_later(seconds + _GRACE_S, exit=True, file=stacks)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what became of the check."""
    told = yield
    if item.get_closest_marker("minutes") is None:
        return told
    report = item.config.stash[REPORT]
    row = report.checks[_name(item)]
    row.seconds += told.duration
    if told.failed:
        row.reason = _first_line(call)
        if row.verdict == "running":
            row.verdict = "failed"
    elif told.when == "teardown" and row.verdict == "running":
        row.verdict = "passed"
    report.write()
    return told


def _first_line(call: pytest.CallInfo[None]) -> str:
    error = call.excinfo.value if call.excinfo else None
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:400]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say where the report is, and which checks were skipped."""
    if REPORT not in config.stash or config.option.collectonly:
        return
    report = config.stash[REPORT]
    terminalreporter.section("checks on a GPU")
    verdicts = [check.verdict for check in report.checks.values()]
    counted = ", ".join(f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts))
    terminalreporter.write_line(f"{counted}; report in {config.getoption('--gpu-report')}/summary.md")
    for check in report.checks.values():
        if check.verdict == "skipped":
            terminalreporter.write_line(f"{check.name}: skipped: {check.reason}")


def _name(item: pytest.Item) -> str:
    return f"{item.path.name.removesuffix('.py')}::{item.name}"
