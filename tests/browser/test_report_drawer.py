"""What a reader does with one case: reads all about it, copies its configuration; and the small page."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from distbench.adopt import FORMATS
from distbench.analysis.run import RunAnalysis
from distbench.core.case import Batch
from distbench.record import Record, Status
from distbench.report import lite
from support.browser_pages import HOSTILE, See, Seen
from support.records import COLUMNS, case, failed, info, measured, unsupported

DDP, FSDP, DP = case("ddp"), case("fsdp"), case("dp")
SINGLE = case("single", 1)
ENGINE = {"engine": "Module", "parameters": 1_234_567, "optimizer": {"lr": 0.1}}
BROKEN = failed(case("zero2"), "it broke", log="the last line", status=Status.OOM_GPU)
FOUR = (
    replace(measured(SINGLE, 400), effective=ENGINE),
    replace(measured(DDP, 700), effective={**ENGINE, "reducer": "buckets"}),
    replace(measured(FSDP, 350), effective={**ENGINE, "sharding": "full"}),
    unsupported(DP),
    BROKEN,
)


def rates(seen: Seen) -> dict[str, str]:
    """Return what the table says each case's throughput is relative to another's, by its label."""
    column = seen.page.locator("#cases thead th").evaluate_all(
        "all => all.findIndex(e => e.dataset.name === 'relative')"
    )
    rows = seen.page.locator("#cases tbody tr[data-speed]")
    pairs = rows.evaluate_all(f"all => all.map(e => [e.dataset.label, e.cells[{column}].textContent])")
    return dict(pairs)


def test_a_row_opens_all_about_its_case_and_escape_goes_back_to_it(see: See) -> None:
    seen = see(*FOUR, permissions=["clipboard-read", "clipboard-write"])
    page, drawer = seen.page, seen.page.locator("#drawer")
    chart = seen.chart("throughput-memory")
    page.locator(f"#case-{FSDP.id} a[title]").focus()
    page.keyboard.press("Enter")
    expect(drawer.locator("h2")).to_be_focused()
    assert drawer.locator("h2").inner_text() == FSDP.name
    assert re.search(r"sharding\s+full\s+not reported", drawer.inner_text())
    # what is chosen is so in every chart, and goes on to be when the drawer is gone
    chosen = "e => e.data.filter(t => t.customdata).map(t => t.selectedpoints.length)"
    assert sorted(chart.evaluate(chosen)) == [0, 1]
    assert page.locator(".plane a.selected").get_attribute("data-case") == FSDP.id
    page.keyboard.press("Escape")
    assert not drawer.is_visible()
    expect(page.locator(f"#case-{FSDP.id} a[title]")).to_be_focused()
    assert page.locator("#cases tr.selected").get_attribute("id") == f"case-{FSDP.id}"
    page.keyboard.press("Escape")
    assert page.locator(".selected").count() == 0
    assert seen.trouble == []


def test_a_case_can_be_copied_as_configuration_or_it_says_why_not(see: See) -> None:
    noisy = replace(measured(case("zero")), effective=ENGINE, degraded="others computed")
    seen = see(*FOUR, noisy, permissions=["clipboard-read", "clipboard-write"])
    page, drawer = seen.page, seen.page.locator("#drawer")
    page.evaluate(f"location.hash = '#case-{DDP.id}'")
    drawer.locator("summary", has_text="torch").first.click()
    drawer.get_by_role("button", name="Copy", exact=False).locator("visible=true").nth(1).click()
    expect(drawer.get_by_text("Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert "DistributedDataParallel" in copied
    assert f"{DDP.name} ({DDP.id}), as measured by distbench" in copied
    assert re.search("deepspeed: .*ddp", drawer.inner_text())
    assert "noisy machine" not in drawer.inner_text()
    page.evaluate(f"location.hash = '#case-{noisy.case_id}'")
    drawer.get_by_text("Warning: measured only on a noisy machine: others computed").wait_for()
    page.evaluate(f"location.hash = '#case-{BROKEN.case_id}'")
    drawer.get_by_text("the last line").wait_for()
    assert "oom_gpu. it broke" in drawer.inner_text()
    assert drawer.inner_text().count("there is nothing to export") == len(FORMATS)
    assert seen.trouble == []


def test_the_answer_its_reason_and_its_configuration_are_within_three_screens(see: See) -> None:
    sizes = [(strategy, size) for strategy in ("ddp", "fsdp", "zero") for size in (1, 2, 4, 8)]
    cases = [case(strategy, size, seed=seed) for strategy, size in sizes for seed in (1, 2, 3)][:33]
    every = [replace(measured(each, 900 - i), effective=ENGINE) for i, each in enumerate(cases)]
    seen = see(*every, permissions=["clipboard-read", "clipboard-write"])
    page, drawer = seen.page, seen.page.locator("#drawer")
    assert page.inner_text("#case-count") == "33 of 33 cases"
    for what in (".lead", "li"):
        box = page.locator(f"#answer {what}").first.bounding_box()
        assert box, what
        assert box["y"] + box["height"] < 900, "on the first screen"
    page.locator("#cases tr.recommended a").first.click()
    drawer.locator("summary", has_text="torch").first.click()
    # after that of the launch line
    drawer.get_by_role("button", name="Copy", exact=False).locator("visible=true").nth(1).click()
    expect(drawer.get_by_text("Copied")).to_be_visible()
    assert "as measured by distbench" in page.evaluate("navigator.clipboard.readText()")
    scrolled = page.evaluate("scrollY + document.getElementById('drawer').scrollTop")
    assert scrolled < 3 * 900


def test_names_settings_and_logs_are_text_in_the_drawer_too(see: See) -> None:
    bad = failed(case(HOSTILE), HOSTILE, traceback=HOSTILE, log=HOSTILE)
    odd = replace(measured(DDP), effective={HOSTILE: HOSTILE, "optimizer": [HOSTILE]})
    seen = see(bad, odd, replace(measured(FSDP), effective=ENGINE))
    for each in (bad, odd):
        seen.page.evaluate(f"location.hash = '#case-{each.case_id}'")
        expect(seen.page.locator("#drawer h2")).to_be_focused()
        assert "{{ 7*7 }}" in seen.page.locator("#drawer").text_content()
        assert seen.page.locator("#drawer img, #drawer b, #drawer script").count() == 0
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert seen.trouble == []


def test_the_table_is_relative_to_any_case_shows_chosen_columns_and_needs_no_groups(see: See) -> None:
    other = measured(case("fsdp", 2, name="fsdp/ws2/mb2/fp32", batch=Batch(16, 8, 1)), 100)
    seen = see(*FOUR, other)
    page = seen.page
    assert rates(seen) == {"ddp": "1.00", "fsdp": "–", "single": "–"}, "fsdp of other work is last"
    page.select_option("#case-base", "single")
    assert rates(seen) == {"ddp": "–", "fsdp": "–", "single": "1.00"}, "on as many devices"
    page.select_option("#case-base", "fsdp")
    assert rates(seen) == {"ddp": "2.00", "fsdp": "1.00", "single": "–"}
    page.locator("#cases .chooser summary").click()
    loss = page.locator("#cases thead th[data-name=final_loss]")
    assert not loss.is_visible()
    page.locator("#cases .chooser label", has_text="final loss").click()
    assert loss.is_visible()
    page.locator("#case-groups").uncheck()
    shown = page.locator("#cases tbody tr:visible th bdi").all_inner_texts()
    assert shown[:3] == [DDP.name, FSDP.name, other.case.name]
    assert SINGLE.name in shown
    assert seen.trouble == []


def many(count: int) -> list[Record]:
    return [
        failed(case(f"zero{i}"), f"word {i} " * 500, log="x" * 5000)
        if i % 2
        else measured(case(f"zero{i}"), 100 + i)
        for i in range(count)
    ]


@pytest.mark.parametrize(("records", "least"), [(FOUR, 700), (many(200), 298), ((), 0)])
def test_the_small_page_has_the_answer_and_runs_no_script(records: tuple[Record, ...], least: int) -> None:
    cases = list({record.case_id: record.case for record in records}.values())
    text = lite.render(RunAnalysis(info(*cases), records))
    assert len(text.encode()) < 300_000
    assert "<script" not in text.split("<body>")[1]
    assert "script-src 'none'" in unescape(text)
    assert f"{least:,}" in text if least else "No recommendation" in text
    assert text.count("<svg") == bool(records)
    assert ("120 more cases are in the full report" in text) == (len(records) == 200)


def test_mail_cuts_no_column_of_the_small_page(browser: Browser, tmp_path: Path) -> None:
    told = {"mfu": 0.4, "step_s": 0.1}
    columns = {**COLUMNS, **{name: {"unit": "", "better": "higher", "doc": ""} for name in told}}
    records = [replace(measured(case("zero2+offload"), 123_456, **told), columns=columns), *FOUR]
    file = lite.write(tmp_path, RunAnalysis(info(*(record.case for record in records)), records))
    page = Seen(browser, file, viewport={"width": 600, "height": 900}).page
    assert page.locator("#cases .scroll").evaluate("e => e.scrollWidth <= e.clientWidth")
    heads = page.locator("#cases thead th").all_inner_texts()
    assert heads == ["case", "tokens/s", "MFU", "× ddp", "peak memory"]


def test_a_hostile_name_is_text_in_the_small_page() -> None:
    records = [measured(case(HOSTILE)), measured(case(f"ddp{HOSTILE}")), failed(FSDP, HOSTILE)]
    text = lite.render(RunAnalysis(info(*(record.case for record in records), name=HOSTILE), records))
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;img" in text
