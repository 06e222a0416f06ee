"""What axe finds on a page: contrast, names of controls, order of headings, roles. Its rules are WCAG 2's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from distbench.record import Status
from support.browser_pages import See, Seen
from support.records import case, failed, measured

SAMPLE = Path(__file__).parents[2] / "reports" / "sample" / "report.html"
DDP = case("ddp")
BROKEN = failed(case("zero2"), "it broke", log="the last line", status=Status.OOM_GPU)


def violations(page: Page) -> str:
    """Return what is wrong with *page* as it is shown now, or nothing."""
    found = Axe().run(page)
    return str(found.generate_report()) if found.violations_count else ""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_with_everything_unfolded_has_no_violation(browser: Browser, scheme: Any) -> None:
    seen = Seen(browser, SAMPLE, color_scheme=scheme)
    seen.page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    assert not violations(seen.page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_case_and_a_narrow_page_with_a_failure_have_no_violation(see: See, scheme: Any) -> None:
    page = see(measured(DDP, 700), BROKEN, width=390, color_scheme=scheme).page
    assert not violations(page)
    page.locator(f"#case-{DDP.id} a[title]").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#drawer")).to_be_visible()
    assert not violations(page)
