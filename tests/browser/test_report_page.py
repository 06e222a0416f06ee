"""What a reader does with the page in a browser: scrolls, clicks, sorts, filters, exports, prints."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Download

from distbench.core.case import PluginChoice
from distbench.record import Status
from support.browser_pages import SOME, See, Seen
from support.records import case, communicating, failed, measured

SAMPLE = Path(__file__).parents[2] / "reports" / "sample" / "report.html"
DDP, FSDP, ZERO = case("ddp"), case("fsdp"), case("zero2")
THREE = (failed(case("dp"), "it broke"), measured(DDP, 150), measured(FSDP, 1200), measured(ZERO, 90))


def names(seen: Seen) -> list[str]:
    """Return the labels of the rows that the table of the cases shows, from top to bottom."""
    shown = seen.page.locator("#cases tbody tr[id]:visible th bdi").all_inner_texts()
    return [name.partition("/")[0] for name in shown]


def download(seen: Seen, kind: str) -> str:
    with seen.page.expect_download() as waiting:
        seen.page.locator(f"[data-export={kind}]").click()
    given: Download = waiting.value
    assert given.suggested_filename == f"cases.{kind}"
    return Path(given.path()).read_bytes().decode()


def test_a_chart_is_drawn_when_it_comes_into_sight_and_all_are_before_printing(see: See) -> None:
    seen = see(*SOME)
    every, drawn = seen.page.locator(".chart").count(), seen.page.locator(".chart[data-drawn]")
    assert drawn.count() < every
    seen.page.locator(".chart[data-chart=scaling-strong-throughput]").scroll_into_view_if_needed()
    seen.page.locator(".chart[data-chart=scaling-strong-throughput] .main-svg").first.wait_for()
    seen.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert drawn.count() == every
    assert seen.page.locator("details[data-print]:not([open])").count() == 0
    seen.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert seen.page.locator("details[data-print][open]").count() == 0


def test_background_is_folded_until_a_link_leads_to_it(see: See) -> None:
    seen = see(*SOME)
    folded, opened = (seen.page.locator(f"details.folded{state}") for state in ("", "[open]"))
    assert folded.count() >= 3
    assert opened.count() == 0
    seen.page.locator("#contents a[href='#trials']").click()
    seen.page.locator(".chart[data-chart=trials-throughput] .main-svg").first.wait_for()
    assert opened.count() == 1
    seen.page.locator("#trials .folded > summary").click()
    assert opened.count() == 0
    seen.page.locator("#contents a[href='#trials']").click()
    seen.page.wait_for_selector("#trials .folded[open]")
    assert seen.trouble == []


def test_every_link_into_a_collapsed_part_of_the_sample_opens_it(browser: Browser) -> None:
    seen = Seen(browser, SAMPLE, viewport={"width": 1440, "height": 900})
    links = seen.page.locator("a[href^='#']").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    into = [
        link for link in dict.fromkeys(links) if seen.page.locator(f"details {link}, details{link}").count()
    ]
    assert len(into) > 20
    for link in into:
        seen.page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = false; })")
        seen.page.evaluate("link => { location.hash = link; }", link)
        seen.page.locator(link).wait_for(state="visible")
    assert seen.trouble == []


@pytest.mark.parametrize(("width", "most"), [(1440, 10 * 900), (390, 12_000)])
def test_the_page_of_the_sample_has_at_most_ten_screens_or_twelve_thousand_pixels_on_a_phone(
    browser: Browser, width: int, most: int
) -> None:
    seen = Seen(browser, SAMPLE, viewport={"width": width, "height": 900})
    for chart in seen.page.locator(".chart:visible").all():
        chart.scroll_into_view_if_needed()
        chart.locator(".main-svg").first.wait_for()
    assert seen.page.evaluate("document.documentElement.scrollHeight") <= most
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    assert seen.trouble == []


@pytest.mark.parametrize(("width", "beside"), [(1440, True), (1000, False)])
def test_two_charts_stand_beside_each_other_where_there_is_room(see: See, width: int, beside: bool) -> None:
    seen = see(*SOME, width=width)
    tops = []
    for name in ("scaling-strong-throughput", "scaling-strong-efficiency"):
        seen.chart(name)
        tops.append(seen.page.evaluate(f"document.getElementById('{name}').offsetTop"))
    assert (tops[0] == tops[1]) == beside


def test_paper_has_whole_charts_beside_each_other_and_nothing_for_the_pointer(see: See) -> None:
    two_sizes = [measured(case(name, size), 100 * size) for name in ("ddp", "fsdp") for size in (1, 2)]
    seen = see(*two_sizes, measured(ZERO))
    page = seen.page
    assert page.locator("#failures").is_visible()
    # A4 less its margins
    page.set_viewport_size({"width": 703, "height": 1032})
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert (
        page.locator(":is(summary, button:not(.sort), input, select, #failures, nav, .pair):visible").count()
        == 0
    )
    assert page.locator("main > section:visible").count() > 5
    inside = """all => all.every(e => e.querySelector(".main-svg").getBoundingClientRect().right
        <= e.closest("figure").getBoundingClientRect().right + 1)"""
    assert page.locator(".chart").evaluate_all(inside)
    boxes = [each.bounding_box() for each in page.locator("#throughput figure").all()]
    assert len({box and box["y"] for box in boxes}) == 1 < len(boxes)
    assert all(box and box["width"] > 600 for box in [page.locator("#loss figure").first.bounding_box()])


def test_the_page_prints_to_a_file_with_everything_in_it(see: See) -> None:
    seen = see(*SOME)
    assert len(seen.page.pdf()) > 50_000
    assert seen.trouble == []


def test_a_click_on_a_mark_goes_to_the_row_of_its_case_even_if_it_was_filtered_out(see: See) -> None:
    seen = see(*THREE)
    seen.page.fill("#case-filter", "zero2")
    chart = seen.chart("throughput-memory")
    names_of = "element => element.data.map(trace => trace.name)"
    assert chart.evaluate(names_of)[:3] == ["ddp", "fsdp", "zero2"]
    box = chart.locator(".scatterlayer .trace").nth(1).locator("path.point").bounding_box()
    assert box is not None
    seen.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    seen.page.wait_for_url(f"**#case-{FSDP.id}")
    row = seen.page.locator(f"#case-{FSDP.id}")
    row.wait_for(state="visible")
    plain = seen.page.locator(f"#case-{DDP.id} td").first.evaluate("e => getComputedStyle(e).backgroundColor")
    assert row.locator("td").first.evaluate("e => getComputedStyle(e).backgroundColor") != plain


def test_the_pointer_over_a_mark_tells_the_facts_of_its_case(see: See) -> None:
    seen = see(*THREE)
    chart = seen.chart("throughput-memory")
    box = chart.locator(".scatterlayer .trace").nth(1).locator("path.point").bounding_box()
    assert box is not None
    seen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    seen.page.locator(".hoverlayer text").first.wait_for()
    told = " ".join(seen.page.locator(".hoverlayer tspan").all_text_contents())
    for fact in ("fsdp/ws2/mb4/fp32", "measured", "1,200 tokens/s", "8.00 × ddp", "977 KiB at the peak"):
        assert fact in told


def test_a_column_sorts_by_its_numbers_with_the_keyboard_and_what_is_not_known_is_last(see: See) -> None:
    seen = see(*THREE)
    assert names(seen) == ["fsdp", "ddp", "zero2", "dp"], "the fastest first"
    button = seen.page.locator("#cases thead button", has_text="tokens/s")
    head = seen.page.locator("#cases thead th").nth(1)
    widths = "all => all.map(e => e.getBoundingClientRect().width)"
    before = seen.page.locator("#cases thead th").evaluate_all(widths)
    button.focus()
    seen.page.keyboard.press("Enter")
    assert (names(seen), head.get_attribute("aria-sort")) == (["zero2", "ddp", "fsdp", "dp"], "ascending")
    seen.page.keyboard.press("Space")
    assert (names(seen), head.get_attribute("aria-sort")) == (["fsdp", "ddp", "zero2", "dp"], "descending")
    seen.page.locator("#cases thead button").first.click()
    assert names(seen) == ["ddp", "dp", "fsdp", "zero2"]
    assert head.get_attribute("aria-sort") == "none"
    assert seen.page.locator("#cases thead th").evaluate_all(widths) == before


def test_rows_are_found_by_text_and_by_status(see: See) -> None:
    seen = see(*THREE)
    seen.page.fill("#case-filter", "BROKE")
    assert (names(seen), seen.page.inner_text("#case-count")) == (["dp"], "1 of 4 cases")
    seen.page.fill("#case-filter", "")
    seen.page.select_option("#case-status", "measured")
    assert (names(seen), seen.page.inner_text("#case-count")) == (["fsdp", "ddp", "zero2"], "3 of 4 cases")


def test_each_label_of_the_table_leads_to_its_definition(see: See) -> None:
    seen = see(THREE[0], *map(communicating, THREE[1:]))
    links = seen.page.locator("#cases thead a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    assert len(links) == 6, "tokens/s, x ddp, memory, communication, loss, trials"
    assert all(seen.page.locator(f"#made dt{link}").count() == 1 for link in links)


def test_the_table_is_given_out_as_csv_in_the_order_shown_and_no_cell_is_a_formula(see: See) -> None:
    names = ['=HYPERLINK("https://example.org")', "+1", "-1", "@sum", "\ttab", 'a,"b"\nc']
    records = [measured(case(name), 100 + i) for i, name in enumerate(names)]
    seen = see(*records, failed(FSDP, "=cmd()"))
    seen.page.locator("#cases thead button", has_text="tokens/s").click()
    seen.page.locator("#cases thead button", has_text="tokens/s").click()
    header, *lines = csv.reader(io.StringIO(download(seen, "csv"), newline=""))
    found = [dict(zip(header, line, strict=True)) for line in lines]
    assert [row["tokens_per_s"] for row in found] == ["105", "104", "103", "102", "101", "100", ""]
    assert [row["label"] for row in found] == [names[5], *(f"'{name}" for name in names[4::-1]), "fsdp"]
    assert found[-1]["reason"] == "'=cmd()"
    assert not [cell for line in lines for cell in line if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert seen.trouble == []


def test_the_cases_that_were_looked_for_are_given_out_as_json(see: See) -> None:
    seen = see(*THREE, measured(DDP, 170, round_=1))
    seen.page.fill("#case-filter", "ddp")
    given = json.loads(download(seen, "json"))
    (found,) = given["cases"]
    # the mean that the table shows, of logarithms
    value = pytest.approx((150 * 170) ** 0.5)
    assert found["values"]["tokens_per_s"] == {"value": value, "low": 150, "high": 170, "n": 2}
    assert (found["case"], found["status"], found["relative_to_ddp"]) == (DDP.name, "measured", 1)
    assert given["columns"][0]["name"] == "tokens_per_s"


def test_a_thousand_cases_and_more_are_a_page_that_is_complete_and_works(see: See) -> None:
    records = [
        measured(case(f"zero{i % 4}", 2**j, name=f"zero{i % 4}/ws{2**j}/v{i}", seed=i), 1000.0 + 7 * i + j)
        for i in range(300)
        for j in range(4)
    ]
    seen = see(*records)
    assert seen.page.inner_text("#case-count") == "1,200 of 1,200 cases"
    seen.page.fill("#case-filter", "/v299")
    assert seen.page.locator("#cases tbody tr[id]:visible").count() == 4
    assert seen.page.locator("#cases .group:visible").count() == 4
    seen.page.fill("#case-filter", "")
    seen.page.locator("#cases thead button", has_text="tokens/s").click()
    assert seen.page.locator("#cases tbody tr[id] a").first.get_attribute("title") == "zero0/ws8/v0"
    assert len(download(seen, "csv").splitlines()) == 1201
    the_last = seen.page.locator(f"#case-{records[-1].case_id}")
    assert not the_last.is_visible(), "of so many rows the first are laid out"
    seen.page.evaluate("id => { location.hash = '#case-' + id; }", records[-1].case_id)
    the_last.wait_for(state="visible")
    seen.page.locator("#drawer").wait_for(state="visible")
    seen.page.keyboard.press("Escape")
    seen.page.locator("#values summary").first.click()
    seen.page.locator("button[data-more=values]").click()
    # they are unpacked first
    seen.page.locator("#values tbody tr").nth(1199).wait_for(state="attached")
    assert seen.page.locator("#values tbody tr").count() == 1200
    assert seen.page.locator("#values tbody tr").last.locator("th, td").count() == (
        seen.page.locator("#values thead th").count()
    )
    seen.scroll_through()
    assert seen.trouble == []


def test_a_row_that_is_drawn_on_demand_is_as_those_that_stand_on_the_page(see: See) -> None:
    cases = [
        case("ddp", name=f"ddp+bucket{i}/ws2/mb4", strategy=PluginChoice("ddp", {"bucket_cap_mb": i}))
        for i in range(1, 61)
    ]
    of_others, of_two = (
        {"engine": "TorchEngine", "optimizer": {"kernel": each}} for each in ("fused", "foreach")
    )
    records = [
        replace(measured(of), effective=of_two if of in (cases[1], cases[-1]) else of_others) for of in cases
    ]
    seen = see(*records)
    seen.page.locator("#values summary").first.click()
    # a second click while the rows are unpacked adds none
    seen.page.evaluate("""async () => {
        const more = document.querySelector("button[data-more=values]");
        more.click();
        more.click();
        await unpacked("values-rest");
    }""")
    rows = seen.page.locator("#values tbody th")
    assert rows.count() == 60
    there, drawn = [
        rows.nth(cases.index(of)).inner_html().replace(of.name.partition("/")[0], "NAME")
        for of in (cases[1], cases[-1])
    ]
    assert there == drawn
    assert there.startswith('<bdi>NAME/<wbr>ws2/<wbr>mb4</bdi> <a href="#not-the-same-work">[a')


def test_two_hundred_cases_with_all_their_figures_are_a_small_file(see: See) -> None:
    wide = {f"a_column_of_a_metric_{i}": 1 / (i + 3) for i in range(80)}
    of = [case(f"zero{i % 4}+v{i}", seed=i) for i in range(200)]
    records = [measured(each, 1000 + i, round_=i, **wide) for each in of for i in range(3)]
    assert see(*records).file.stat().st_size < 8e6


def test_failures_stand_under_how_they_ended_with_what_to_try(see: See) -> None:
    seen = see(
        failed(DDP, "no memory", status=Status.OOM_GPU),
        failed(FSDP, "no memory", status=Status.OOM_GPU),
        failed(ZERO, "no sign of life", status=Status.HANG),
    )
    assert seen.page.locator("#failures h3").all_inner_texts() == ["oom_gpu · 2 cases", "hang · 1 case"]
    assert "smaller micro-batch" in seen.page.locator("#failures .try").first.inner_text()
    seen.page.locator("#failures h4 a").first.click()
    assert seen.page.url.endswith(f"#case-{DDP.id}")
    assert seen.trouble == []


def test_records_of_an_older_version_that_know_little_have_a_page_too(see: See) -> None:
    old = replace(measured(DDP), columns={}, values={"tokens_per_s": 5.0}, samples={}, warmup_losses=[])
    none = replace(old, case=FSDP, case_id=FSDP.id, values={}, tables={"memory": [{"rank": 0}]})
    seen = see(old, none)
    seen.scroll_through()
    assert seen.trouble == []
    assert names(seen) == ["ddp", "fsdp"]


def test_a_window_that_becomes_narrow_gets_its_legends_below_the_charts(see: See) -> None:
    seen = see(*SOME)
    seen.scroll_through()
    legend = "element => element.layout.legend.orientation"
    chart = seen.page.locator(".chart").first
    assert chart.evaluate(legend) == "v"
    seen.page.set_viewport_size({"width": 390, "height": 900})
    seen.page.wait_for_function("document.querySelector('.chart').layout.legend.orientation === 'h'")
    assert seen.trouble == []


@pytest.mark.parametrize("width", [390, 1600])
def test_the_contents_lead_to_every_chapter(see: See, width: int) -> None:
    seen = see(*SOME, width=width)
    links = seen.page.locator("#contents a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    sections = seen.page.locator("main > section").evaluate_all("all => all.map(e => '#' + e.id)")
    assert [link for link in links if link in sections] == sections


def test_every_chart_has_a_name_an_alternative_and_its_numbers(see: See) -> None:
    seen = see(*SOME)
    seen.scroll_through()
    figures = seen.page.locator("figure:has(.chart)").all()
    assert figures
    for figure in figures:
        assert figure.locator("h3").inner_text()
        assert figure.locator("figcaption").inner_text()
        assert len(figure.locator(".chart[role=group]").get_attribute("aria-label") or "") > 20
        assert figure.locator("table").count() == 1 or figure.locator("a[href='#cases']").count() == 1
