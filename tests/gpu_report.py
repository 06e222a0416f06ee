"""The checks of tests/gpu: time-outs that a hanging child can't outlast, and a folder that says what held.

A check is a test marked ``minutes(limit)``. ``summary.md`` and ``report.json`` are written anew when a check
begins and when it ends, so a run that is killed has left what it knew.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pytest

from distbench import env
from distbench.files import write_whole

REHEARSAL = bool(os.environ.get("DISTBENCH_REHEARSAL"))
"""The CPU takes the place of the GPU, with models that suit it: the checks themselves are tried."""
# a CPU takes its time for what suits a GPU
_PATIENCE = 5 if REHEARSAL else 1
# for what a check that is stopped has to end: ranks, and their parent
_GRACE_S = 90.0
_GIB = 1 << 30
_MARKERS = {
    "minutes(limit)": "a check of tests/gpu, which fails after so many minutes",
    "gpus(count)": "needs so many GPUs; deselected where there are fewer",
    "host_memory(gib)": "needs so much host memory; deselected where there is less",
    "cuda": "asks what only a GPU has; deselected in a rehearsal on a CPU",
}


@dataclass
class Check:
    """A row of the report."""

    name: str
    verdict: str = "not reached"
    """held, did not hold, timed out, running (as the report was written), not reached, or not for this
    machine."""
    seconds: float = 0.0
    reason: str = ""
    figures: dict[str, tuple[float | str | bool, str]] = field(default_factory=dict)
    """What was measured: name -> value and unit."""

    def figure(self, name: str, value: float | str | bool, unit: str = "") -> None:
        """Keep *value*, in *unit*, whatever becomes of the check."""
        self.figures[name] = value, unit


class Report:
    """Writes ``summary.md`` and ``report.json`` into *folder*."""

    def __init__(self, folder: Path, minutes: float) -> None:
        self.checks: dict[str, Check] = {}
        self.facts: dict[str, Any] = {"rehearsal": REHEARSAL, **env.describe()}
        """What the figures depend on: device, driver, versions."""
        self._folder, self._end = folder, time.monotonic() + 60 * minutes

    @property
    def left_s(self) -> float:
        """Seconds that the whole of the checks may still take."""
        return self._end - time.monotonic()

    def stacks(self) -> TextIO:
        """File for the stacks of a check that does not end."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return (self._folder / "stacks.txt").open("a")

    def note(self, environment: Mapping[str, Any]) -> None:
        """Keep what the ranks of a trial say of their *environment* and this process can't know."""
        told = {key: environment[key] for key in ("gpu", "cuda", "nccl", "backend") if key in environment}
        self.facts.update(told)

    def write(self) -> None:
        """Write both files; what was there is replaced as a whole."""
        self._folder.mkdir(parents=True, exist_ok=True)
        checks = [asdict(check) for check in self.checks.values()]
        write_whole(self._folder / "report.json", json.dumps({**self.facts, "checks": checks}, indent=1))
        write_whole(self._folder / "summary.md", "\n".join(self._lines()) + "\n")

    def _lines(self) -> Iterator[str]:
        yield "# Checks on a GPU\n"
        if REHEARSAL:
            yield "**A rehearsal on a CPU: it shows that the checks run, and nothing about GPUs.**\n"
        yield f"- GPUs: {', '.join(self.facts['gpus']) or 'none'}; driver: {self.facts['gpu_driver']}"
        versions = self.facts["packages"] | {key: self.facts.get(key) for key in ("cuda", "nccl")}
        shown = ("torch", "deepspeed", "cuda", "nccl")
        yield "- " + ", ".join(f"{name} {versions.get(name) or 'not known'}" for name in shown)
        yield f"- CPU: {self.facts['cpu']}, {self.facts['cpu_cores']} cores; Python {self.facts['python']}\n"
        yield "| check | verdict | seconds | figures | reason |\n|---|---|--:|---|---|"
        for check in self.checks.values():
            figures = "; ".join(f"{name}: {_shown(*value)}" for name, value in check.figures.items())
            cells = [check.name, check.verdict, f"{check.seconds:.1f}", figures, check.reason]
            yield f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"


def _shown(value: float | str | bool, unit: str) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"{text} {unit}".strip()


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
            row.verdict, row.reason = "not for this machine", lacking[item]
    items[:] = [item for item in items if item not in lacking]
    config.hook.pytest_deselected(items=list(lacking))


def _lacking(item: pytest.Item) -> str:
    """What this machine lacks for *item*; empty: nothing."""
    here = {
        "gpus": (1 << 30) if REHEARSAL else max(1, env.gpu_count()),
        "host_memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB,
    }
    if REHEARSAL and item.get_closest_marker("cuda"):
        return "asks what only a GPU has"
    for name, has in here.items():
        marker = item.get_closest_marker(name)
        if marker and has < marker.args[0]:
            return f"needs {name} = {marker.args[0]}, this machine has {has:.0f}"
    return ""


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Refuse to begin without a GPU: that is neither a success nor a failure of distbench."""
    if REPORT not in session.config.stash or session.config.option.collectonly:
        return
    if not (REHEARSAL or env.gpu_count()):
        raise pytest.UsageError(
            "the checks of tests/gpu need an NVIDIA GPU, and the driver shows none; "
            "DISTBENCH_REHEARSAL=1 tries the checks themselves with the CPU in its place"
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
            row.verdict = "did not hold"
    elif told.when == "teardown" and row.verdict == "running":
        row.verdict = "held"
    report.write()
    return told


def _first_line(call: pytest.CallInfo[None]) -> str:
    error = call.excinfo.value if call.excinfo else None
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:400]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say where the report is, and which checks were not for this machine."""
    if REPORT not in config.stash or config.option.collectonly:
        return
    report = config.stash[REPORT]
    terminalreporter.section("checks on a GPU")
    verdicts = [check.verdict for check in report.checks.values()]
    counted = ", ".join(f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts))
    terminalreporter.write_line(f"{counted}; report in {config.getoption('--gpu-report')}/summary.md")
    for check in report.checks.values():
        if check.verdict == "not for this machine":
            terminalreporter.write_line(f"{check.name}: not for this machine: {check.reason}")


def _name(item: pytest.Item) -> str:
    return f"{item.path.name.removesuffix('.py')}::{item.name}"
