"""The page in a real browser: it draws, asks the network for nothing, and foreign text stays text."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from distbench.record import Record
from support.browser_pages import HOSTILE, SOME, See
from support.records import case, failed, measured, unsupported

DDP, FSDP, DP = case("ddp"), case("fsdp"), case("dp")


def test_the_page_draws_every_chart_without_an_error_or_a_request(see: See) -> None:
    seen = see(*SOME)
    seen.scroll_through()
    assert seen.trouble == []
    charts = seen.page.locator(".chart").evaluate_all("all => all.map(e => e.dataset.chart)")
    assert charts == [
        "throughput-memory",
        "scaling-strong-throughput",
        "scaling-strong-efficiency",
        "loss-steps",
        "trials-throughput",
    ]
    assert seen.page.locator(".chart:has(.scatterlayer .trace)").count() == len(charts)
    assert seen.titles() == [
        "The answer",
        "All cases",
        "Change the constraints",
        "Key findings",
        "Throughput against memory",
        "Scaling",
        "What limits a step",
        "Which strategy, and why",
        "Loss curves",
        "Trials",
        "Failures",
        "All values",
        "Method and environment",
    ]


def test_landmarks_have_names_of_their_own_and_the_keyboard_skips_to_the_content(see: See) -> None:
    seen = see(*SOME)
    page = seen.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    seen.chart("throughput-memory")
    named = """all => all.map(e => e.getAttribute("aria-label") || e.getAttribute("aria-labelledby")
        .split(" ").map(id => document.getElementById(id).textContent).join(" "))"""
    names = page.locator("section[aria-labelledby], [role=region], nav, [role=search]").evaluate_all(named)
    assert len(set(names)) == len(names) > 10
    # what is one picture to a screen reader must hold nothing that the keyboard reaches
    assert page.locator("[role=img] :is(a, button, input, [tabindex])").count() == 0
    assert page.locator("#contents [aria-current]").count() == 1


def test_the_page_is_told_to_load_nothing_and_offers_to_send_nothing(see: See) -> None:
    seen = see(*SOME)
    seen.scroll_through()
    blocked = "() => fetch('https://example.org/').then(() => 'sent', () => 'blocked')"
    assert seen.page.evaluate(blocked) == "blocked"
    # by the page itself, not for want of a network
    assert any("Content Security Policy" in each for each in seen.trouble)
    buttons = seen.page.locator(".modebar [data-title]").evaluate_all("all => all.map(e => e.dataset.title)")
    looking = ["Zoom", "Pan", "Zoom in", "Zoom out", "Autoscale", "Reset axes"]
    assert set(buttons) == {"Download plot as a PNG", *looking}, "no other, whatever the library adds"


@pytest.mark.parametrize("records", [(), (unsupported(DP),), (failed(DDP),), (measured(DDP),)])
def test_a_run_with_little_or_nothing_in_it_has_a_page_too(see: See, records: tuple[Record, ...]) -> None:
    seen = see(*records)
    assert seen.trouble == []
    named = "on 2 CPU ranks: transformer" if records else "No cases"
    assert named in seen.page.locator("h1").inner_text()
    assert "suite tiny" in seen.page.inner_text("header")


@pytest.mark.drill("hostile names, reasons and logs on a page in a browser")
def test_names_reasons_and_logs_are_text_whatever_they_hold(see: See) -> None:
    bad = failed(FSDP, HOSTILE, traceback=HOSTILE, log=HOSTILE + "x" * 10_000_000)
    seen = see(measured(case(f"ddp{HOSTILE}")), measured(case(HOSTILE)), bad, name=HOSTILE)
    assert seen.trouble == []
    assert seen.page.title().startswith("</script><script>document.title='taken'")
    assert seen.page.evaluate("document.images.length") == 0
    assert seen.page.evaluate("document.querySelectorAll('b').length") == 0
    assert "{{ 7*7 }}" in seen.page.inner_text("#failures")
    assert seen.file.stat().st_size < 8e6


def test_a_chart_draws_no_markup_out_of_a_name(see: See) -> None:
    linked = measured(case('<a href="https://example.org/">x</a>'))
    seen = see(measured(case("<b>ddp</b>")), replace(linked, samples={"loss": [[3.0, 2.0]] * 2}))
    seen.scroll_through()
    assert seen.trouble == []
    assert seen.page.locator(".chart svg a").count() == 0
    assert "<b>ddp</b>" in seen.page.locator("#loss .annotation-text").all_text_contents()


def test_a_column_with_a_hostile_name_is_text_and_its_definition_is_still_linked(see: See) -> None:
    record = measured(DDP)
    column = {"unit": HOSTILE, "better": HOSTILE, "over_ranks": HOSTILE, "doc": HOSTILE}
    foreign = Record(**{**vars(record), "columns": {HOSTILE: column}, "values": {HOSTILE: 7.0}})
    seen = see(foreign)
    assert seen.trouble == []
    assert seen.page.evaluate("document.images.length") == 0
    links = seen.page.locator("#values thead a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    assert all(seen.page.locator(link).count() == 1 for link in links)


@pytest.mark.parametrize("width", [390, 1280])
def test_very_long_text_does_not_widen_the_page(see: See, width: int) -> None:
    long = case("w" * 10_000)
    seen = see(measured(DDP), measured(long), failed(FSDP, "x" * 10_000, log="y" * 10_000), width=width)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


def test_charts_take_on_the_dark_scheme_and_print_on_white(see: See) -> None:
    seen = see(*SOME, color_scheme="dark")
    seen.scroll_through()
    ink = "getComputedStyle(document.querySelector('.chart .xtick text')).fill"
    assert seen.page.evaluate(ink) == "rgb(230, 233, 236)"
    seen.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert seen.page.evaluate(ink) == "rgb(0, 0, 0)"
    seen.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert seen.page.evaluate(ink) == "rgb(230, 233, 236)"


def test_the_numbers_behind_each_chart_stand_in_a_table(see: See) -> None:
    seen = see(*SOME)
    seen.page.locator("#scaling-strong-efficiency summary", has_text="Show data").click()
    assert re.search(r"ddp\s+2\s+150\s+0\.750", seen.page.inner_text("#scaling-strong-efficiency table"))
    seen.page.locator("#loss .folded > summary").click()
    seen.page.locator("#loss figure summary", has_text="Show data").first.click()
    assert re.search(r"4\s+3\s+2\.5", seen.page.inner_text("#loss table"))


def test_one_step_of_two_cases_is_drawn_and_either_case_can_be_changed(see: See) -> None:
    def lanes(name: str, kind: str = "compute") -> list[dict[str, Any]]:
        times = {"step": 0, "begin_s": 0.0, "end_s": 0.1, "busy_s": 0.1, "rank": 0}
        return [
            {**times, "kind": "step", "name": "", "bridged_s": 1e-4, "trace": "rank0.trace.json.gz"},
            {**times, "kind": kind, "name": name},
        ]

    names = {"ddp": "forward", "fsdp": "backward", "zero2": HOSTILE}
    cases = [
        replace(measured(case(label)), tables={"timeline": lanes(what)}) for label, what in names.items()
    ]
    seen = see(*cases)
    chart = seen.chart("timeline-lanes")
    legend = chart.locator(".legendtext")
    assert legend.all_text_contents()[0] == "forward"
    assert seen.page.locator(".pair select").count() == 2
    seen.page.get_by_label("Above").select_option(label="fsdp")
    seen.page.get_by_label("Below").select_option(label="fsdp")
    assert legend.all_text_contents() == ["backward"], "one entry for both"
    seen.page.get_by_label("Below").select_option(label="zero2")
    assert "<script>" in "".join(legend.all_text_contents())
    chosen = f"document.dispatchEvent(new CustomEvent('case', {{ detail: '{case('ddp').id}' }}))"
    seen.page.evaluate(chosen)
    assert legend.all_text_contents()[0] == "forward", "a case that is chosen elsewhere comes up here"
    assert seen.page.get_by_label("Above").locator("option:checked").inner_text() == "ddp"
    assert seen.page.locator("#timeline a[href='https://ui.perfetto.dev']").count() == 1
    assert seen.trouble == []
