"""Two runs as a page, in a browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Browser

from distbench.analysis.run import RunAnalysis
from distbench.cli import main
from distbench.record import Record
from distbench.report import comparison_page
from distbench.report.comparison import compare_runs
from distbench.views.charts.figures import CaseStyle
from support.browser_pages import HOSTILE, Seen
from support.records import case, failed, info, measured

DDP, FSDP = case("ddp"), case("fsdp")


def trials(label: str, speed: float) -> list[Record]:
    # what all cases of a round share is no noise, so each has its trials in an order of its own
    offsets = [0.01 * ((i + int(speed)) % 3) for i in range(3)]
    return [measured(case(label), speed * (1 + offset), round_=i) for i, offset in enumerate(offsets)]


def side(*records: Record, name: str = "tiny") -> RunAnalysis:
    named = list({record.case_id: record.case for record in records}.values())
    return RunAnalysis(info(*named, name=name), records)


def seen(browser: Browser, folder: Path, before: RunAnalysis, *after: RunAnalysis) -> Seen:
    file = folder / "comparison.html"
    comparison_page.write([compare_runs(before, each) for each in after], file)
    return Seen(browser, file, viewport={"width": 390, "height": 900})


def test_a_change_is_drawn_told_and_in_the_table(browser: Browser, tmp_path: Path) -> None:
    before = side(*trials("ddp", 1000), *trials("fsdp", 800))
    page = seen(browser, tmp_path, before, side(*trials("ddp", 900), *trials("fsdp", 801)))
    page.scroll_through()
    assert page.trouble == []
    assert page.page.locator(".chart").count() == 1
    looks = page.page.evaluate("document.querySelector('.chart').data.slice(1).map(trace => trace.marker)")
    style = CaseStyle.for_cases(before.cases)
    assert looks == [{**style.marker(name), "size": 9} for name in ("ddp", "fsdp")]
    assert "1 measurably slower, 1 within" in page.page.inner_text("#words-1")
    row = page.page.locator("#compare tbody tr", has_text="ddp")
    assert row.locator("td").first.inner_text().startswith("0.900 (")
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_names_and_facts_are_text_whatever_they_hold(browser: Browser, tmp_path: Path) -> None:
    told = [replace(each, environment={HOSTILE: HOSTILE}) for each in trials(HOSTILE, 1000)]
    other = [replace(each, environment={HOSTILE: "other"}) for each in trials(HOSTILE, 500)]
    page = seen(
        browser,
        tmp_path,
        side(*told, failed(FSDP, HOSTILE), name=HOSTILE),
        side(*other, failed(FSDP, HOSTILE), name=HOSTILE),
    )
    page.scroll_through()
    assert page.trouble == []
    assert page.page.evaluate("document.images.length + document.querySelectorAll('b').length") == 0


def test_runs_with_nothing_in_common_have_a_page_that_says_so(browser: Browser, tmp_path: Path) -> None:
    page = seen(browser, tmp_path, side(*trials("ddp", 1000)), side(failed(FSDP)))
    assert page.trouble == []
    assert "comparable throughput" in page.page.inner_text("#words-1")
    assert "only in the first run" in page.page.inner_text("#words-1")


def test_of_three_runs_the_second_and_third_are_held_against_the_first(
    browser: Browser, tmp_path: Path
) -> None:
    sides = [side(*trials("ddp", speed)) for speed in (1000, 900, 500)]
    page = seen(browser, tmp_path, *sides)
    page.scroll_through()
    assert page.trouble == []
    rows = page.page.locator("table:has-text('tokens/s') tbody tr td:nth-child(2)").all_inner_texts()
    assert [row.split(" (")[0] for row in rows] == ["0.900", "0.500"]
    ids = page.page.locator("[id]").evaluate_all("all => all.map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_a_page_that_can_not_be_written_is_told(capsys, tmp_path: Path) -> None:
    sample = str(Path(__file__).parents[2] / "reports" / "sample")
    assert main(["compare", sample, sample, "--html", str(tmp_path / "no" / "page.html")]) == 4
    assert "page.html: can't be written: No such file or directory" in capsys.readouterr().err
