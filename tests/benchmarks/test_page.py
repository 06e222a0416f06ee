"""The page of 33 cases as a reader meets it: how soon it is there, how long, and how large for mail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from distbench.analysis.run import RunAnalysis
from distbench.plan import PlannedCase
from distbench.record.run_folder import Run
from distbench.report import lite, page

SAMPLE = Path(__file__).parent.parent.parent / "reports" / "sample"
CASES, SIZES = 33, (2, 4, 8)
FIRST_PAINT = """new Promise(done => new PerformanceObserver(seen => done(seen.getEntries()
    .find(each => each.name === "first-contentful-paint").startTime))
    .observe({ type: "paint", buffered: true }))"""


@pytest.fixture(scope="module")
def many() -> RunAnalysis:
    """Return the measured cases of the sample on two devices, each under several names and sizes."""
    run = Run(SAMPLE)
    on_two = [record for record in RunAnalysis.read(run).timed_records if record.case.world_size == 2]
    measured = [record for record in on_two if record.values]
    labels = list(dict.fromkeys(record.case.label for record in measured))
    copies = []
    for place in range(CASES):
        label, size = labels[place % len(labels)], SIZES[place % len(SIZES)]
        for record in (each for each in measured if each.case.label == label):
            name = f"{label}-{place}"
            made = replace(record.case, label=name, name=f"{name}/ws{size}", world_size=size, seed=place)
            copies.append(replace(record, case=made, case_id=made.id))
    planned = {record.case_id: PlannedCase(record.case) for record in copies}
    return RunAnalysis(replace(run.info(), cases=[*planned.values()]), copies)


def test_the_page_of_33_cases_is_there_within_a_second(
    benchmark, browser: Browser, many: RunAnalysis, tmp_path: Path
) -> None:
    file = page.write(tmp_path, many)
    opened = browser.new_page(viewport={"width": 1280, "height": 900})

    def paint() -> None:
        opened.goto(file.as_uri(), wait_until="commit")
        opened.evaluate(FIRST_PAINT)

    benchmark.pedantic(paint, rounds=5, warmup_rounds=1)
    assert benchmark.stats.stats.median < 1
    opened.wait_for_load_state()
    assert opened.locator("#cases tbody tr[id]").count() == CASES
    assert opened.evaluate("document.documentElement.scrollHeight") < 25 * 900


def test_the_small_page_of_33_cases_is_below_300_kb(many: RunAnalysis, tmp_path: Path) -> None:
    assert lite.write(tmp_path, many).stat().st_size < 300_000
