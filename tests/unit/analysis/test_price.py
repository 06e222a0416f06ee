"""What training costs: a price in the suite or on the command line, and the numbers made of it."""

import json
import re

import pytest

from distbench.analysis.cost import COST_PER_BILLION_TOKENS, TRAINING_COST, TRAINING_HOURS
from distbench.core.errors import SuiteError
from distbench.suite import Overrides, load_suite
from support.records import case, measured, stored_run
from support.suites import write_suite
from support.wrong_suites import MINIMAL

DDP, SINGLE = case("ddp"), case("single", 1)


@pytest.fixture
def run(tmp_path) -> str:
    """A run of ddp on two devices at 1,000 and 1,100 tokens/s, and of one device at 600."""
    paces = (DDP, 1000.0, 0), (SINGLE, 600.0, 0), (DDP, 1100.0, 1), (SINGLE, 600.0, 1)
    return str(stored_run(tmp_path, *(measured(of, pace, round_=i) for of, pace, i in paces)).folder)


def values(command, run: str, *price: str) -> dict[str, dict]:
    code, output, errors = command("show", run, "--json", *price)
    assert code == 0, errors
    return {row["strategy"]: row["values"] for row in json.loads(output)["cases"]}


def test_money_and_hours_follow_from_throughput_and_price(command, run):
    of = values(command, run, "--price", "2 EUR")
    pace = of["ddp"]["tokens_per_s"]["interval"]["value"]
    assert of["ddp"][COST_PER_BILLION_TOKENS]["interval"]["value"] == pytest.approx(
        2 * 2 * 1e9 / (pace * 3600)
    )
    assert of["ddp"][COST_PER_BILLION_TOKENS]["unit"] == "EUR"
    assert of["ddp"][TRAINING_HOURS]["interval"]["value"] == pytest.approx(1e9 / pace / 3600)
    # the cheaper one is the slower one: one device at more than half the pace
    assert of["single"][TRAINING_COST]["value"] < of["ddp"][TRAINING_COST]["value"]
    assert of["ddp"][COST_PER_BILLION_TOKENS]["low"] == pytest.approx(2 * 2 * 1e9 / (1100 * 3600))
    assert COST_PER_BILLION_TOKENS not in values(command, run)["ddp"]


def test_the_price_stands_in_the_table_the_view_and_the_recommendation(command, run):
    price = ("--price", "2.5USD")
    assert "USD/1e9 tok" in command("show", run, *price)[1]
    view = json.loads(command("show", run, "--view", "cost", "--json", *price)[1])
    assert [row["strategy"] for row in view["rows"]] == ["single", "ddp"]
    picked = json.loads(command("pick", run, "--json", *price)[1])
    (reason,) = (reason for reason in picked["reasons"] if "USD" in reason)
    told = r"At 2\.5 USD per device-hour, 1e9 tokens cost [\d,.]+ USD and take [\d,.]+ h\."
    assert re.fullmatch(told, reason)
    assert "2.5 USD" not in command("pick", run)[1]
    nothing = command("show", run, "--view", "cost")[1]
    assert "The price of a device is unknown" in nothing


def test_the_page_has_the_price_of_each_case(command, run, tmp_path):
    assert command("report", run, "--price", "2.5 USD")[0] == 0
    (page,) = tmp_path.glob("*/report.html")
    assert "USD per 1e9 tokens" in page.read_text()


@pytest.mark.parametrize("price", ["2.5", "USD", "0 USD", "-1 USD", "1.2.3 USD", "2 US$"])
def test_a_price_that_is_none_is_refused(command, run, price):
    code, _, errors = command("pick", run, "--price", price)
    assert (code, "expected a price above 0 with a currency" in errors) == (2, True)


def test_a_suite_says_what_a_device_costs_and_a_run_keeps_it(tmp_path):
    file = write_suite(tmp_path, MINIMAL + "cost: {per_device_hour: 3, currency: EUR}\n", "mine.yaml")
    suite = load_suite(file, Overrides(set=["cost.tokens=5e9"]))
    assert suite.to_resolved()["cost"] == {"per_device_hour": 3, "currency": "EUR", "tokens": 5e9}
    file.write_text(MINIMAL)
    assert "cost" not in load_suite(file).to_resolved()
    for wrong, message in (("{currency: EUR}", "missing"), ("{per_device_hour: 0}", "must be above 0")):
        file.write_text(f"{MINIMAL}cost: {wrong}\n")
        with pytest.raises(SuiteError, match=message):
            load_suite(file)
    file.write_text(MINIMAL + "cost: {per_device_hour: 1, currency: US$}\n")
    with pytest.raises(SuiteError, match="1 to 8 letters"):
        load_suite(file)
