"""Pages in a real browser that notes what goes wrong, and records to make pages of."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.record import Record
from distbench.report import page
from support.records import case, failed, info, measured

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Request

HOSTILE = (
    "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
    "'\"<b>{{ 7*7 }}&amp;\u202e\u2028\x1b[2J"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium")
    assert found, "these tests need Chromium: apt-get install -y chromium"
    # other tests, which conftest gives this module to, run where it is not installed
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


class Seen:
    """A page, opened in a browser."""

    def __init__(self, browser: Browser, file: Path, **options: Any) -> None:
        self.file = file
        self.trouble: list[str] = []
        self.page: Page = browser.new_page(**options)
        self.page.on("console", lambda message: self.trouble.append(message.text))
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("request", self._note)
        self.page.goto(self.file.as_uri())

    def _note(self, request: Request) -> None:
        if request.url != self.file.as_uri() and not request.url.startswith(("data:", "blob:")):
            self.trouble.append(f"request for {request.url}")

    def titles(self) -> list[str]:
        return self.page.locator("h2").all_inner_texts()

    def scroll_through(self) -> None:
        """Bring every chart into sight once."""
        for i in range(self.page.locator(".chart").count()):
            self._draw(self.page.locator(".chart").nth(i))

    def chart(self, name: str) -> Locator:
        """Return the chart of this name, brought into sight and drawn."""
        return self._draw(self.page.locator(f".chart[data-chart={name}]"))

    @staticmethod
    def _draw(chart: Locator) -> Locator:
        chart.evaluate(
            "chart => { const folded = chart.closest('.folded'); if (folded) folded.open = true; }"
        )
        # Coming into sight only asks for the drawing: what is read before it is done isn't there.
        chart.scroll_into_view_if_needed()
        chart.locator(".main-svg").first.wait_for()
        return chart


See = Callable[..., Seen]


@pytest.fixture
def see(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[See]:
    opened: list[Seen] = []

    def call(*records: Record, width: int = 1280, name: str = "tiny", **options: Any) -> Seen:
        cases = list({record.case_id: record.case for record in records}.values())
        analysed = RunAnalysis(info(*cases, name=name), records)
        file = page.write(tmp_path_factory.mktemp("run"), analysed)
        opened.append(Seen(browser, file, viewport={"width": width, "height": 900}, **options))
        return opened[-1]

    yield call
    for seen in opened:
        seen.page.close()


SOME = (
    measured(case("ddp", 1), 100),
    measured(case("ddp"), 150),
    measured(case("fsdp"), 120),
    failed(case("zero2"), log="a log"),
)
"""Two strategies that scale, and one that failed."""
