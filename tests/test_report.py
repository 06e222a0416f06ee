"""The table in the terminal and the page, from records alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from records import case, failed, info, measured, unsupported

from distbench.record import Record
from distbench.report import page, terminal
from distbench.store import Run

DDP, FSDP, DP = case("ddp"), case("fsdp"), case("dp")
ONE = case("ddp", 1)
HOSTILE = (
    "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">\u202e"
)


def table(*records: Record, width: int = 80) -> str:
    cases = list({record.case_id: record.case for record in records}.values())
    return terminal.table(info(*cases), records, width)


def test_the_table_fits_eighty_columns() -> None:
    long = case("zero3+offload-all-nvme+ds-adam", 128)
    text = table(measured(DDP, 123456789), measured(long, 1), failed(FSDP, "word " * 200), unsupported(DP))
    assert max(len(line) for line in text.splitlines()) <= 80


def test_the_table_shows_each_number_with_its_unit_and_the_spread() -> None:
    text = table(measured(DDP, 1000), measured(DDP, 1100, round_=1))
    row = next(line for line in text.splitlines() if line.startswith("ddp "))
    assert row.split() == ["ddp", "measured", "1,050", "±5%", "1.00", "977", "KiB", "97.7", "KiB", "2.5000"]


def test_a_case_that_failed_shows_its_reason_instead_of_numbers() -> None:
    assert "crashed: rank 1 in time: RuntimeError: no" in " ".join(table(failed(DDP)).split())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Debian's own browser; without it this fails and says what is missing
        started = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield started
        started.close()


class Seen:
    """The page of some records, opened in a browser that notes what goes wrong."""

    def __init__(self, browser: Browser, run: Run, width: int = 1280) -> None:
        self.file = page.write(run)
        self.trouble: list[str] = []
        self.page: Page = browser.new_page(viewport={"width": width, "height": 900})
        self.page.on("console", lambda message: self.trouble.append(message.text))
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("request", self._note)
        self.page.goto(self.file.as_uri())
        self.page.wait_for_load_state("networkidle")

    def _note(self, request: object) -> None:
        url = request.url  # type: ignore[attr-defined]
        if url != self.file.as_uri() and not url.startswith(("data:", "blob:")):
            self.trouble.append(f"request for {url}")


@pytest.fixture
def see(browser: Browser, tmp_path_factory: pytest.TempPathFactory):
    def call(*records: Record, width: int = 1280, name: str = "tiny") -> Seen:
        cases = list({record.case_id: record.case for record in records}.values())
        run = Run.create(tmp_path_factory.mktemp("run"), info(*cases, name=name), "")
        for record in records:
            run.write_record(record)
        return Seen(browser, run, width)

    return call


def test_the_page_draws_every_chart_without_an_error_or_a_request(see) -> None:
    seen = see(
        measured(ONE, 100), measured(DDP, 150), measured(FSDP, 120), failed(case("zero2"), log="a log")
    )
    assert seen.trouble == []
    assert seen.page.locator(".chart .main-svg").count() >= 3
    titles = seen.page.locator("h2").all_inner_texts()
    assert {"In words", "Cases", "Throughput against memory", "Loss curves", "What went wrong"} <= set(titles)


@pytest.mark.parametrize("records", [(), (unsupported(DP),), (failed(DDP),), (measured(DDP),)])
def test_a_run_with_little_or_nothing_in_it_has_a_page_too(see, records: tuple[Record, ...]) -> None:
    seen = see(*records)
    assert seen.trouble == []
    assert seen.page.locator("h1").inner_text() == "tiny"


def test_names_reasons_and_logs_are_text_whatever_they_hold(see) -> None:
    hostile = case(f"ddp{HOSTILE}")
    seen = see(
        measured(hostile),
        failed(FSDP, HOSTILE, traceback=HOSTILE, log=HOSTILE + "x" * 10_000_000),
        name=HOSTILE,
    )
    assert seen.trouble == []
    assert "taken" not in seen.page.title().replace(HOSTILE, "")
    assert seen.page.evaluate("document.images.length") == 0
    assert seen.file.stat().st_size < 8e6


def test_the_page_fits_a_phone(see) -> None:
    seen = see(measured(DDP), measured(FSDP), failed(case("zero2"), "x" * 10_000), width=390)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_column_that_the_page_does_not_know_is_shown_with_its_definition(see) -> None:
    record = measured(DDP, beats=7.0)
    record.columns["beats"] = {
        "unit": "beats",
        "better": "higher",
        "over_ranks": "sum",
        "doc": "Heart beats.",
    }
    text = see(record).page.inner_text("body")
    del record.columns["beats"]
    assert re.search(r"7\s+beats", text)
    assert "Heart beats." in text
