"""The page of ``distbench trace``, in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from distbench.cli import main
from support.browser_pages import HOSTILE, Seen
from support.chrome_traces import training_step


def seen(browser: Browser, folder: Path, width: int = 1280) -> Seen:
    for rank in (0, 1):
        trace = training_step().op(HOSTILE, 101, 103).kernel(HOSTILE, 102, 112, 119)
        trace.rank = rank
        trace.write(folder / f"rank{rank}.json")
    assert main(["trace", str(folder), "--html", str(folder / "trace.html")]) == 0
    return Seen(browser, folder / "trace.html", viewport={"width": width, "height": 900})


@pytest.mark.parametrize("width", [390, 1280])
def test_findings_charts_and_tables_are_there_and_fit(browser: Browser, tmp_path: Path, width: int) -> None:
    page = seen(browser, tmp_path, width)
    page.scroll_through()
    assert page.trouble == []
    words = page.page.inner_text("#words")
    assert "A step takes 55 ms: 45% computation" in words
    assert "synchronisation at train.py(12): main" in words
    assert page.page.locator("#words ol li").count() == 5
    charts = page.page.evaluate(
        "[...document.querySelectorAll('.chart')].map(each => each.data.map(trace => trace.name))"
    )
    parts, lanes = charts
    assert parts == ["computation", "exposed communication", "exposed copies", "idle"]
    assert lanes[:2] == ["computation", "all_reduce"] and lanes[2].startswith("Memcpy HtoD (Pageable")
    assert page.page.locator("#trace-steps-table tbody tr").count() == 4
    assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    ids = page.page.locator("[id]").evaluate_all("all => all.map(e => e.id)")
    assert len(ids) == len(set(ids))
    links = page.page.locator("a[href^='#']").evaluate_all(
        "all => all.map(e => e.getAttribute('href').slice(1))"
    )
    assert links and set(links) <= set(ids)


def test_axe_finds_nothing_with_everything_unfolded(browser: Browser, tmp_path: Path) -> None:
    page = seen(browser, tmp_path).page
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    found = Axe().run(page)
    assert not found.violations_count, found.generate_report()
