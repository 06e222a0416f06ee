"""Metrics over runs as a page, in a browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from distbench.analysis.history import HistoryRun
from distbench.cli import main
from distbench.report import history_page
from distbench.report.history import MetricHistory
from distbench.views.charts.figures import CaseStyle
from distbench.views.charts.palette import VERDICTS
from support.browser_pages import HOSTILE, Seen
from support.records import case, measured
from support.run_histories import NEW, OLD, days, occasion, stored

SPEEDS = [1000.0, 1004.0, 996.0] * 4 + [900.0, 904.0, 896.0] * 2


def seen(
    browser: Browser, folder: Path, occasions: list[HistoryRun], *metrics: str, width: int = 390
) -> Seen:
    file = folder / "history.html"
    made = [MetricHistory.of(occasions, metric, 0.03) for metric in metrics or ("tokens_per_s",)]
    history_page.write(made, [HOSTILE], file)
    return Seen(browser, file, viewport={"width": width, "height": 900})


def test_steps_and_breaks_are_drawn_told_and_in_the_table(browser: Browser, tmp_path: Path) -> None:
    records = [
        replace(measured(case("ddp"), speed), environment=OLD if i < 4 else NEW)
        for i, speed in enumerate(SPEEDS)
    ]
    page = seen(browser, tmp_path, [occasion(i, record) for i, record in enumerate(records)])
    page.scroll_through()
    assert page.trouble == []
    words = page.page.inner_text("#words-1")
    assert "-10.0%, worse, from 1,000 tokens/s to 900 tokens/s" in words
    assert "packages.torch = 2.13.0, was 2.12.1" in words
    told = page.page.inner_text("figure .told")
    assert "Environment changed before run day004 (2026-01-05)" in told
    assert "with it no measurable change." in told
    names = page.page.evaluate("document.querySelector('.chart').data.map(trace => trace.name)")
    assert names == ["run", "level", "environment changed", "step, worse"]
    runs, *_, step = page.page.evaluate("document.querySelector('.chart').data")
    assert step["x"] == [12]
    # a run has the colour of its strategy, and a step one that no strategy has
    assert runs["marker"]["color"] == CaseStyle.for_cases(records).marker("ddp")["color"]
    assert step["marker"]["color"] == VERDICTS["worse"]
    page.page.click("figure summary:has-text('Show data')")
    row = page.page.locator("figure tbody tr", has_text="day012")
    assert "worse" in row.inner_text()
    assert page.page.locator("#history-1-table tbody tr").count() == 1
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_each_metric_has_its_part_and_ids_are_unique(browser: Browser, tmp_path: Path) -> None:
    page = seen(browser, tmp_path, days(SPEEDS), "tokens_per_s", "memory_peak", width=1280)
    page.scroll_through()
    assert page.trouble == []
    assert page.page.locator(".chart").count() == 2
    ids = page.page.locator("[id]").evaluate_all("all => all.map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_names_and_facts_are_text_whatever_they_hold(browser: Browser, tmp_path: Path) -> None:
    columns = {HOSTILE: {"unit": HOSTILE, "better": HOSTILE, "over_ranks": "", "doc": ""}}
    made = []
    for i, value in enumerate([1.0] * 6 + [1e308, -1e308] * 3):
        environment = {"packages": {HOSTILE: f"{HOSTILE}{i > 3}"}}
        told = {"columns": columns, "environment": environment}
        trials = [
            replace(measured(case(HOSTILE), round_=round_, **{HOSTILE: each}), **told)
            for round_, each in enumerate((value, value, -value))
        ]
        made.append(replace(occasion(i, *trials), run_id=HOSTILE))
    page = seen(browser, tmp_path, made, HOSTILE)
    page.scroll_through()
    assert page.trouble == []
    assert page.page.evaluate("document.images.length + document.querySelectorAll('main b').length") == 0
    assert "taken" not in page.page.title()


@pytest.mark.parametrize("values", [[1000.0], [0.0] * 7, [5.0] * 400])
def test_short_flat_and_long_histories_have_a_page(
    browser: Browser, tmp_path: Path, values: list[float]
) -> None:
    page = seen(browser, tmp_path, days(values))
    page.scroll_through()
    assert page.trouble == []
    assert "No significant level shift." in page.page.inner_text("main")


def test_the_command_writes_the_page_and_tells_what_it_could_not_read(
    browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path / "runs/1", 1, measured(case("ddp")))
    (tmp_path / "runs/2").mkdir()
    (tmp_path / "runs/2/run.json").write_text("{")
    file = tmp_path / "history.html"
    assert main(["history", str(tmp_path / "runs"), "--html", str(file)]) == 0
    assert f"history: {file}" in capsys.readouterr().err
    page = Seen(browser, file)
    assert page.trouble == []
    assert "runs/2/run.json" in page.page.inner_text("#skipped")


def test_a_page_that_can_not_be_written_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    stored(tmp_path / "runs/1", 1, measured(case("ddp")))
    assert main(["history", str(tmp_path / "runs"), "--html", str(tmp_path / "no" / "page.html")]) == 4
    assert "page.html: can't be written: No such file or directory" in capsys.readouterr().err
