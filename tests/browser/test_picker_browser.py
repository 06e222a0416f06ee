"""The picker of the page: for any wish it must choose as ``distbench pick`` does for the same wish."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from distbench.analysis.choice import Candidate, Requirements, Selection, select_case
from distbench.analysis.run import RunAnalysis
from distbench.core.case import PrecisionConfig
from distbench.core.units import format_bytes
from distbench.record import Record
from distbench.report import page as report_page
from support.browser_pages import HOSTILE, See, Seen
from support.known_choices import KNOWN, MIB, Known
from support.probes import DDP, partly_measured, predicted_speed
from support.records import case, failed, info, measured

LABELS = ("single", "ddp", "fsdp", "zero1", "zero2", "zero3", "mine")


def drawn(seed: int) -> list[Record]:
    """Return random records: ties, failures, disturbed and unknown numbers, one to four trials."""
    dice = random.Random(seed)
    records = []
    for label in LABELS:
        for size in (1, 2):
            for precision in ("fp32", "bf16")[: dice.choice((1, 2))]:
                name = f"{label}/ws{size}/mb4/{precision}"
                of = case(label, size, name=name, precision=PrecisionConfig(compute=precision))
                records += _trials(dice, of)
    return records


def _trials(dice: random.Random, of: Any) -> list[Record]:
    if dice.random() < 0.1:
        return [failed(of)]
    # few values, so that speeds and memory are often the same
    speed, memory = dice.choice((800, 1000, 1020, 1500)), dice.choice((50, 100, 100.5, 300)) * MIB
    noise = dice.choice((0.001, 0.05))
    told: dict[str, Any] = {"degraded": "others computed"} if dice.random() < 0.1 else {}
    found = []
    for number in range(dice.randint(1, 4)):
        value = speed * (1 + noise * dice.uniform(-1, 1))
        joules = dice.choice((0.2, 0.21, 0.5))
        record = measured(of, value, round_=number, memory_peak=memory, energy_per_token=joules)
        for column in ("memory_peak", "energy_per_token", "tokens_per_s"):
            if dice.random() < 0.05:
                del record.values[column]
        found.append(Record(**{**vars(record), **told}))
    return found


def wished(seed: int, precisions: list[str]) -> Requirements:
    dice = random.Random(seed)
    return Requirements(
        goal=dice.choice(("throughput", "memory", "tokens-per-joule")),
        memory=dice.choice((None, None, 40 * MIB, 100 * MIB, 100.5 * MIB, 200 * MIB)),
        devices=dice.choice((1, 2)),
        precision=dice.choice(precisions),
        work="",
        avoid=tuple(dice.sample(LABELS, dice.choice((0, 0, 1, 3)))),
        within=dice.choice((0.0, 0.1, 0.35, 1.0)),
    )


def ask(page: Page, wish: Requirements) -> None:
    """Fill in the fields as a reader would."""
    form = page.locator("#picker form")
    form.locator("[name=goal]").select_option(wish.goal)
    form.locator("[name=devices]").select_option(str(wish.devices))
    if form.locator("[name=precision]").count():
        form.locator("[name=precision]").select_option(wish.precision)
    form.locator("[name=memory]").fill("" if wish.memory is None else repr(wish.memory / MIB))
    if wish.goal == "memory":
        form.locator("[name=within]").fill(repr(100 * wish.within))
    if not page.locator("#picker .avoid[open]").count():
        page.locator("#picker .avoid summary").click()
    for label in LABELS:
        form.locator(f"[name=avoid][value={label}]").set_checked(label in wish.avoid)


def shown(page: Page) -> tuple[str, set[str], list[str], list[str]]:
    """Return the pick, those alike, and the ids in the table: taken, and left out."""
    picked = page.locator("#picked")
    rows = page.locator("#picker tbody tr").evaluate_all(
        "all => all.map(row => [row.dataset.id, row.className])"
    )
    taken = [row for row, look in rows if look != "left-out"]
    left_out = [row for row, look in rows if look == "left-out"]
    return (
        picked.get_attribute("data-id") or "",
        set((picked.get_attribute("data-alike") or "").split()),
        taken,
        left_out,
    )


def expected(choice: Selection) -> tuple[str, set[str], list[str], list[str]]:
    return (
        choice.pick.id if choice.pick else "",
        {one.id for one in choice.tied},
        [one.id for one in choice.ranked],
        [one.id for one, _ in choice.excluded],
    )


def unfold_standings(page: Page) -> None:
    """Open the table below the answer, unless a change of a field has done so."""
    if not page.locator("#picker-standings[open]").count():
        page.locator("#picker-standings > summary").click()


def rates(page: Page) -> list[list[str]]:
    """Return speed and interval of each case that was taken, as its row says them."""
    read = "all => all.map(row => [...row.querySelectorAll('td')].slice(0, 2).map(cell => cell.innerText))"
    found: list[list[str]] = page.locator("#picker tbody tr:not(.left-out)").evaluate_all(read)
    return found


def _rates(one: Candidate) -> list[str]:
    assert one.speed is not None
    ends = (one.speed.text(end) for end in (one.speed.low, one.speed.high))
    return [one.speed.text(), "–" if one.speed.half_log_width is None else " to ".join(ends)]


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=[pytest.mark.train, pytest.mark.deep]) for seed in (2, 3))]
)
def test_every_wish_is_answered_as_in_python(see: See, seed: int) -> None:
    records = drawn(seed)
    seen = see(*records)
    named = list({record.case_id: record.case for record in records}.values())
    every = RunAnalysis(info(*named), records).candidates
    precisions = sorted({one.precision for one in every})
    seen.page.locator("#picker [name=unit]").select_option("1048576")
    for number in range(15):
        wish = wished(100 * seed + number, precisions)
        ask(seen.page, wish)
        choice = select_case(every, wish)
        assert shown(seen.page) == expected(choice), wish
        assert rates(seen.page) == [_rates(one) for one in choice.ranked], wish
    assert seen.trouble == []


@pytest.mark.parametrize("known", KNOWN.values(), ids=list(KNOWN))
def test_the_page_gives_the_right_answer_where_it_is_known(see: See, known: Known) -> None:
    seen = see(*known.records)
    page = seen.page
    if known.mib is None:
        answer = page.inner_text("#answer")
        assert [each for each in known.says if each not in answer] == []
    else:
        page.locator("#picker [name=memory]").fill(str(known.mib))
        assert known.says[0].partition(" on 2 devices")[0] in page.inner_text("#picked")
    unfold_standings(page)
    taken = page.locator("#picker tr.taken th").all_inner_texts()
    assert taken == ([known.pick] if known.pick else [])
    assert seen.trouble == []


SOME = (
    measured(case("ddp"), 1000, memory_peak=400 * MIB),
    measured(case("zero3"), 500, memory_peak=100 * MIB),
    failed(case("fsdp")),
)


def test_the_page_opens_with_the_answer_and_the_slider_changes_it(see: See) -> None:
    seen = see(*SOME)
    assert seen.page.inner_text("#answer .lead").startswith("Train with ddp on 2 devices: 1,000")
    assert seen.page.inner_text("#picked").startswith("Train with ddp: 1,000 tokens/s, 400 MiB.")
    slider = seen.page.locator("#picker [name=slider]")
    slider.focus()
    for _ in range(5):
        # with the keyboard, as the mouse would
        slider.press("ArrowLeft")
    assert seen.page.inner_text("#picked").startswith("Train with zero3: 500 tokens/s, 100 MiB.")
    slider.press("Home")
    assert "No measured case fits in 98.0 MiB" in seen.page.inner_text("#picked")
    seen.page.locator("#picker button[type=reset]").click()
    expect(seen.page.locator("#picked")).to_contain_text("Train with ddp")
    seen.page.locator("#picker [name=memory]").fill("-3")
    assert "must be a number above 0" in seen.page.inner_text("#picked")
    assert seen.page.locator("#picker tbody tr").count() == 0
    assert seen.trouble == []


def test_what_is_left_out_is_there_with_why_and_leads_to_its_case(see: See) -> None:
    seen = see(*SOME)
    unfold_standings(seen.page)
    row = seen.page.locator("#picker tr.left-out")
    assert "crashed: rank 1 in time" in row.inner_text()
    target = row.locator("a").get_attribute("href") or ""
    assert seen.page.locator(target).count() == 1


def test_a_case_that_was_only_predicted_is_marked_and_never_taken(browser: Browser, tmp_path: Path) -> None:
    speed = predicted_speed(partly_measured(), DDP)
    run = partly_measured(speed, speed * 1.01)
    seen = Seen(browser, report_page.write(tmp_path, run))
    (open_,) = run.selection.to_measure
    unfold_standings(seen.page)
    row = seen.page.locator(f"#picker tr.left-out[data-id='{open_.id}']")
    assert "predicted: measure it (" in row.inner_text()
    seen.page.locator("#picker [name=unit]").select_option("1048576")
    assert open_.predicted_memory is not None
    place = {"devices": 2, "precision": open_.precision, "work": open_.work}
    memory = seen.page.locator("#picker [name=memory]")
    tight = f"predicted: does not fit (at least {format_bytes(open_.predicted_memory)})"
    for factor, standing in ((1.01, open_.exclusion_reason), (0.99, tight)):
        wish = Requirements(**place, memory=open_.predicted_memory * factor)
        memory.fill(repr(open_.predicted_memory * factor / MIB))
        choice = select_case(run.candidates, wish)
        assert shown(seen.page) == expected(choice)
        assert standing in row.inner_text()
        assert standing in [why for one, why in choice.excluded if one.id == open_.id]
    seen.page.locator("#picker .avoid summary").click()
    seen.page.locator(f"#picker [name=avoid][value={open_.label}]").check()
    assert "excluded" in row.inner_text()
    assert seen.trouble == []


def test_hostile_names_are_text_in_the_picker_too(see: See) -> None:
    seen = see(measured(case(HOSTILE)), measured(case(f"ddp{HOSTILE}")), failed(case("fsdp"), HOSTILE))
    assert seen.trouble == []
    assert seen.page.locator("#picker img, #picker b, #answer img").count() == 0


def test_a_run_without_cases_has_an_answer_that_says_so_and_no_picker(see: See) -> None:
    seen = see()
    assert "No recommendation" in seen.page.inner_text("#answer")
    assert seen.page.locator("#picker").is_hidden()
    assert seen.trouble == []
