"""Save the charts of a page as PNG files for slides, drawn by a browser."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distbench.core.errors import InfrastructureError, UsageError
from distbench.core.text import one_line
from distbench.system.files import infrastructure_errors
from distbench.system.machine import install_hint

if TYPE_CHECKING:
    from playwright.sync_api import Page

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_PAGE_OPTIONS: dict[str, Any] = {
    # below the width from which the page puts charts beside each other
    "viewport": {"width": 1200, "height": 900},
    "device_scale_factor": 2,
    "color_scheme": "light",
}


def save_chart_images(report: Path, folder: Path) -> list[Path]:
    """Write each chart of the page *report* into *folder* and return the files.

    Raises:
        UsageError: playwright or a browser is missing.
        InfrastructureError: the browser fails, or a file can't be written.
    """
    browser = _browser()
    from playwright.sync_api import Error, sync_playwright

    try:
        with infrastructure_errors(folder), sync_playwright() as playwright:
            folder.mkdir(parents=True, exist_ok=True)
            # the sandbox of Chromium does not start for root; the page is our own and loads nothing
            arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
            started = playwright.chromium.launch(executable_path=browser, args=arguments)
            page = started.new_page(**_PAGE_OPTIONS)
            page.goto(report.resolve().as_uri())
            files = _draw(page, folder)
            started.close()
    except Error as error:
        raise InfrastructureError(f"--png: {browser}: {one_line(str(error))}") from error
    return files


def _draw(page: Page, folder: Path) -> list[Path]:
    files = []
    page.evaluate(
        "document.querySelectorAll('details[data-print]').forEach((details) => { details.open = true; })"
    )
    for figure in page.locator("figure:has(.chart)").all():
        figure.scroll_into_view_if_needed()
        # charts are drawn when they scroll into view
        figure.locator(".main-svg").first.wait_for()
        files.append(folder / f"{figure.locator('.chart').get_attribute('data-chart')}.png")
        figure.screenshot(path=files[-1])
    return files


def _browser() -> str:
    """Path of a browser.

    Raises:
        UsageError: there is none, or playwright is not installed.
    """
    if importlib.util.find_spec("playwright") is None:
        raise UsageError(f"--png: needs playwright; install it {install_hint('png')}")
    for name in _BROWSERS:
        if path := shutil.which(name):
            return path
    raise UsageError(f"--png: needs a browser on the PATH, one of {', '.join(_BROWSERS)}")
