"""What a framework costs per step: paired by rounds, with an interval, or a reason why it is not known."""

import dataclasses
import re

import pytest

from distbench.analysis.framework_price import framework_prices
from distbench.core.case import PluginChoice
from distbench.record import Record
from distbench.tables.table import Table, TableCell
from distbench.views.base import all_views
from support.records import COLUMNS, case, failed, measured, run_of

NATIVE = case("ddp")
FRAMED = case("ddp", name="ddp/ws2/mb4/fp32/engine=accelerate", engine=PluginChoice("accelerate"))
STEP = {"step_s": {"unit": "s", "better": "lower", "over_ranks": "max", "doc": "Step."}}


def trials(of, seconds: list[float]) -> list[Record]:
    records = [measured(of, 100 / each, round_=i, step_s=each) for i, each in enumerate(seconds)]
    return [dataclasses.replace(each, columns={**COLUMNS, **STEP}) for each in records]


def table(*records: Record) -> Table:
    return all_views()["engines"].table(run_of(*records))


# rounds differ by a factor of two, which must not hide 2 ms in 100
ROUNDS = [0.100, 0.200, 0.140, 0.110, 0.160]


def test_what_slows_down_both_cancels():
    run = run_of(*trials(NATIVE, ROUNDS), *trials(FRAMED, [1.02 * each for each in ROUNDS]))
    (price,) = framework_prices(run.cases)
    assert price.ratio and price.ratio.value == pytest.approx(1.02, rel=1e-6)
    added, low, high = price.seconds or (0, 0, 0)
    assert added == pytest.approx(0.02 * run.cases[0].values["step_s"].value)
    assert low <= added <= high
    assert price.is_settled


def test_a_price_within_the_noise_is_not_settled():
    records = [*trials(NATIVE, [0.1] * 5), *trials(FRAMED, [0.105, 0.095, 0.102, 0.097, 0.101])]
    (price,) = framework_prices(run_of(*records).cases)
    assert not price.is_settled
    shown = table(*records)
    assert "may be noise" in " ".join(shown.notes)
    # an interval of several ms supports no hundredths
    cell = shown.rows[0].cells["price_s"]
    assert isinstance(cell, TableCell)
    assert re.fullmatch(r"-?\d\.\d ms \(-\d\.\d to \d\.\d ms\)", cell.text), cell.text


def test_a_framework_may_save_time():
    shown = table(*trials(NATIVE, ROUNDS), *trials(FRAMED, [0.9 * each for each in ROUNDS]))
    (row,) = shown.rows
    assert row.value("price_s") < row.value("price_high_s") < 0
    assert row.value("price") == pytest.approx(-0.1)
    assert "the framework saves " in shown.notes[0]


def test_one_trial_gives_a_price_of_unknown_spread():
    shown = table(*trials(NATIVE, [0.1]), *trials(FRAMED, [0.11]))
    (row,) = shown.rows
    assert row.value("price_s") == pytest.approx(0.01)
    assert row.value("price_low_s") is None


def test_without_the_native_case_there_is_no_price():
    shown = table(*trials(FRAMED, ROUNDS))
    (row,) = shown.rows
    assert row.value("price_s") is None
    assert "the same case with engine: native was not measured" in shown.notes[0]


def test_another_strategy_is_not_the_native_case():
    shown = table(*trials(case("fsdp"), ROUNDS), *trials(FRAMED, ROUNDS))
    assert "was not measured" in shown.notes[0]


def test_a_framework_that_failed_is_not_asked_for_again():
    assert table(*trials(NATIVE, ROUNDS), failed(FRAMED)).notes == (
        "No case with a framework was measured; the overview has the reasons.",
    )


def test_a_run_without_frameworks_says_how_to_request_them():
    assert table(*trials(NATIVE, ROUNDS)).notes == (
        "No measured case has a framework; list them: engine: [native, accelerate].",
    )
