"""Drills: what a fault does to a run, told as a table by ``tox -e drills``.

A test marked ``drill("a rank is killed in its warm-up")`` is a row of that table. It was survived if the test
passes; what it says through the fixture ``drill`` stands beside it. One that this machine can't make is a
row, too, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

import pytest

from distbench.core.text import strip_control_characters

HEADINGS = ("fault", "detected after", "message", "result")
_VERDICTS = {
    "passed": "recovered",
    "failed": "**failed**",
    "error": "**failed**",
    "skipped": "skipped",
}
_NOTICED, _SEEN, _WHAT = "drill: noticed after", "drill: the user sees", "drill"


@dataclass(frozen=True)
class Drill:
    """What a drill says beside its verdict."""

    properties: list[tuple[str, object]]

    def noticed(self, seconds: float) -> None:
        """*seconds* went by from the fault until distbench had dealt with it."""
        self.properties.append((_NOTICED, f"{seconds:.1f} s"))

    def seen(self, text: str) -> None:
        """*text* is what the user got to see; its first line counts."""
        self.properties.append((_SEEN, strip_control_characters(text.strip().partition("\n")[0][:160])))

    def impossible(self, why: str) -> NoReturn:
        """End the drill, which this machine can't make because of *why*."""
        self.properties.append((_SEEN, why))
        pytest.skip(why)


@pytest.fixture
def drill(request: pytest.FixtureRequest) -> Drill:
    """What this drill says beside its verdict."""
    return Drill(request.node.user_properties)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the report of each drill say which it is, also when it comes from another worker."""
    for item in items:
        if marker := item.get_closest_marker("drill"):
            item.user_properties.append((_WHAT, marker.args[0]))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--drills``."""
    parser.addoption("--drills", action="store_true", help="run the drills only, and print their table")


def pytest_configure(config: pytest.Config) -> None:
    """With ``--drills``, choose the drills unless marks are chosen otherwise."""
    if config.getoption("--drills") and not config.option.markexpr:
        config.option.markexpr = "drill"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table after ``--drills``."""
    if not config.getoption("--drills"):
        return
    reports = [
        report
        for outcome in _VERDICTS
        for report in terminalreporter.stats.get(outcome, [])
        if isinstance(report, pytest.TestReport) and report.when in ("setup", "call")
    ]
    terminalreporter.section("drills")
    terminalreporter.write_line(table(reports))


def table(reports: Iterable[pytest.TestReport]) -> str:
    """Return the Markdown table of the drills among *reports*, a line each, in the order of their names."""
    rows = sorted(
        (
            str(said[_WHAT]),
            str(said.get(_NOTICED, "")),
            str(said.get(_SEEN, "")).replace("|", "\\|"),
            _VERDICTS[report.outcome],
        )
        for report in reports
        if _WHAT in (said := dict(report.user_properties))
    )
    lines = (HEADINGS, ["---"] * len(HEADINGS), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
