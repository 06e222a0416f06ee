"""The sample in the repository: a small, complete run, and a page that shows the data of its records."""

import base64
import contextlib
import csv
import gzip
import io
import json
import re
from decimal import Decimal
from html.parser import HTMLParser
from typing import Any

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.cli import main
from distbench.core.job import JobSpec
from distbench.core.machine import Machine
from distbench.core.units import format_bytes
from distbench.plan import make_plan
from distbench.query import Database
from distbench.record.parquet import quote_identifier
from distbench.record.run_folder import Run
from distbench.report.page import render
from distbench.suite import Suite
from distbench.views.base import all_views
from support.records import case, measured, run_of
from support.runs import call
from support.stored_runs import SAMPLE

pytestmark = pytest.mark.usefixtures("read_once")
EMPTY = {
    "predictions",
    "scaling",
    "links",
    "rates",
    "pipeline",
    "cost",
    "disk",
    "checkpoint",
    "convergence",
    "experts",
    "layers",
    "loader",
    "engines",
}
"""Views that such a run has nothing for."""
AMBIGUOUS = {"other"}
"""Columns whose names mean different things in two views: of memory, and of time."""
NUMBER = re.compile(r"[-+]?\d[\d,.]*.{0,9}")
"""A cell of a table that is a number with its unit."""
PACKED_BLOCK = re.compile(r'<script type="text/plain" id="([^"]+)">(.*?)</script>', re.DOTALL)
DATA_BLOCK = re.compile(r'<script type="application/json" id="([^"]+)">(.*?)</script>', re.DOTALL)
# prose of the data blocks: what a better word may change
PROSE = {"doc", "facts", "hovertext", "hovertemplate", "title", "exclusion_reason", "unknown"}
VALUE = re.compile(r"[^\s/]+/ws\d[^\s,;:)]*|\d[\d,.]*(?:e[-+]\d+)?")
# not among VALUE: cells of one word, as a status or a strategy
STATUSES = {"measured", "unsupported", "differs", "crashed", "yes", "no", "–"}


class Tables(HTMLParser):
    """Case names, numbers and statuses of every row of a page's tables."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[list[str]]] = []
        self._cell: list[str] | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self._cell = []

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._cell is not None:
            text = "".join(self._cell)
            self.rows[-1].append(VALUE.findall(text) + [word for word in text.split() if word in STATUSES])
            self._cell = None


def without_prose(tree: Any) -> Any:
    """*tree* of a JSON block without its sentences; lists of names, ids and numbers stay."""
    if isinstance(tree, dict):
        return {key: without_prose(value) for key, value in tree.items() if key not in PROSE}
    if isinstance(tree, list):
        return [without_prose(item) for item in tree]
    return None if isinstance(tree, str) and " " in tree else tree


def data(page: str) -> dict[str, Any]:
    """What *page* says in values: its JSON blocks and its tables, without words that may be improved."""
    blocks = {name: without_prose(json.loads(text)) for name, text in DATA_BLOCK.findall(page)}
    blocks["case-data"] = without_prose(unpacked(page, "case-data"))
    return {**blocks, "tables": Tables(page).rows}


@pytest.fixture(scope="module")
def database() -> Database:
    return Database([Run(SAMPLE)])


@pytest.fixture(scope="module")
def stored() -> str:
    return (SAMPLE / "report.html").read_text()


def test_the_stored_page_has_the_data_that_its_records_render_to_today(stored):
    fresh = data(render(RunAnalysis.read(Run(SAMPLE))))
    old = data(stored)
    assert old.keys() == fresh.keys() >= {"case-data", "picker-data", "chart-data"}
    for block, values in fresh.items():
        assert old[block] == values, f"{block}: render it again: distbench report reports/sample"


def test_the_answer_says_what_limits_the_recommended_case_and_what_to_try(stored):
    answer = stored.partition('<section id="answer"')[2].partition("</section>")[0]
    assert "Compute-bound: 95% of the step is computation" in answer
    assert "To try: shorter dtypes (precision.compute: bf16)" in answer
    unknown = render(run_of(measured(case("ddp"))))
    assert "To try:" not in unknown.partition('<section id="answer"')[2].partition("</section>")[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("19,700", "19,800"),  # a table
        ("19673.9810766", "19674.9810766"),  # the picker
        ("[64.8114,", "[64.8115,"),  # a chart
        ("ddp/ws2/mb8/fp32", "ddp/ws4/mb8/fp32"),
        ('"measured"', '"crashed"'),
        (">unsupported<", ">measured<"),
    ],
)
def test_another_number_name_or_status_is_other_data(stored, before, after):
    changed = PACKED_BLOCK.sub(lambda block: repacked(block, before, after), stored.replace(before, after))
    assert changed != stored
    assert data(changed) != data(stored)


def test_a_better_word_is_the_same_data(stored):
    better = stored.replace("Where time goes", "Step time").replace("nn.DataParallel needs", "dp wants")
    assert better != stored
    assert data(better) == data(stored)


def test_the_sample_is_small():
    files = [file for file in SAMPLE.rglob("*") if file.is_file()]
    assert len(files) < 150
    assert sum(file.stat().st_size for file in files) < 4_400_000


def test_the_sample_is_a_complete_run_of_its_suite():
    run = Run(SAMPLE)
    info = run.info()
    packages = {name: str(version) for name, version in info.machine["packages"].items()}
    machine = Machine("cpu", 2, packages, has_libaio=False, has_compiler=True)
    plan = make_plan(Suite.from_resolved(info.suite), machine)
    assert [item.case for item in plan.cases] == [item.case for item in info.cases]
    planned = [(task.case.id, task.round, task.job) for task in plan.trials]
    refused = [(item.case.id, 0, JobSpec()) for item in plan.cases if item.problem]
    stored = [(record.case.id, record.round, record.job) for record in run.records()]
    assert sorted(stored, key=str) == sorted(planned + refused, key=str)
    assert RunAnalysis.read(run).parity.findings == {}


def test_the_sample_has_measured_and_unsupported_cases_and_a_verdict_for_each_measured_one():
    shown = json.loads(call("show", str(SAMPLE), "--json").stdout)
    statuses = {case["case"]: case["status"] for case in shown["cases"]}
    assert set(statuses.values()) == {"measured", "unsupported"}
    assert {case["case"] for case in shown["cases"] if "equivalence" in case["verdicts"]} == {
        name for name, status in statuses.items() if status == "measured"
    }


def unpacked(page: str, name: str) -> Any:
    """Data of a compressed block of *page*."""
    return json.loads(gzip.decompress(base64.b64decode(dict(PACKED_BLOCK.findall(page))[name])))


def repacked(block: re.Match[str], before: str, after: str) -> str:
    """*block* with *after* in place of *before* in its data."""
    try:
        text = gzip.decompress(base64.b64decode(block[2])).decode()
    except gzip.BadGzipFile:
        return block[0]
    packed = base64.b64encode(gzip.compress(text.replace(before, after).encode())).decode()
    return block[0].replace(block[2], packed)


def case_data(page: str) -> dict[str, dict[str, float]]:
    """Values by case, as the page's script saves them as CSV and JSON."""
    block = unpacked(page, "case-data")
    names = [column["name"] for column in block["columns"]]
    place = block["facts"].index("case")
    return {
        facts[place]: {name: value[0] for name, value in zip(names, values, strict=True) if value}
        for facts, values in block["cases"]
    }


def test_a_number_of_a_case_is_the_same_on_every_surface(stored):
    saved = case_data(stored)
    rows = {row["case_name"]: row for row in csv.DictReader(io.StringIO(call_of("--csv")))}
    plain = {each["case"]: each for each in json.loads(call_of("--json"))["cases"]}
    terminal, markdown = call_of().splitlines(), call_of("--md").splitlines()
    answer = json.loads((SAMPLE / "answer.json").read_text())
    measured = [name for name, row in rows.items() if row["status"] == "measured"]
    assert len(measured) == 5
    for name in measured:
        row, values = rows[name], plain[name]["values"]
        for column in ("tokens_per_s", "memory_peak", "comm_wire_bytes", "final_loss"):
            told = values[column]
            of_json = told["interval"]["value"] if told["interval"] else told["value"]
            assert float(row[column]) == of_json == saved[name][column], (name, column)
            assert told["low"] == min(told["trials"]) and told["high"] == max(told["trials"])
        shown = (
            rounded(values["tokens_per_s"]["interval"]["value"], values["tokens_per_s"]["interval"]),
            format_bytes(float(row["memory_peak"])),
        )
        label = plain[name]["label"]
        (line,) = [line for line in terminal if line.split()[:2] == [label, "measured"]]
        (cells,) = [line for line in markdown if line.startswith(f"| {label} | measured ")]
        assert all(text in line and text in cells for text in shown), name
    picked = rows[next(name for name in measured if plain[name]["label"] == answer["pick"])]
    chosen = json.loads(call("pick", str(SAMPLE), "--json").stdout)["pick"]
    assert chosen["tokens_per_s"] == plain[picked["case_name"]]["values"]["tokens_per_s"]["interval"]
    ends = chosen["selection_intervals"]["tokens_per_s"]
    # nothing is tied with it, so its choice flatters it by nothing
    assert ends == {end: chosen["tokens_per_s"][end] for end in ("low", "high")}
    texts = [
        rounded(chosen["tokens_per_s"][each], chosen["tokens_per_s"]) for each in ("value", "low", "high")
    ]
    assert "{} ({} to {}) tokens/s".format(*texts) in answer["headline"]
    assert format_bytes(float(picked["memory_peak"])) in answer["headline"]


def rounded(value: float, interval: dict[str, float]) -> str:
    """*value* to two digits of half the width of *interval*, as decimal arithmetic has it."""
    half = Decimal(interval["high"] - interval["low"]) / 2
    places = Decimal(10) ** (half.adjusted() - 1)
    return f"{(Decimal(value) / places).to_integral_value() * places:,f}"


@pytest.mark.parametrize("view", sorted(all_views()))
def test_a_view_has_the_same_numbers_as_json_csv_sql_text_and_markdown(view, database, monkeypatch):
    told = json.loads(call_of("--view", view, "--json"))
    names = [column["name"] for column in told["columns"]]
    rows = [[row[name] for name in names] for row in told["rows"]]
    assert rows or view in EMPTY
    header, *lines = csv.reader(io.StringIO(call_of("--view", view, "--csv")))
    assert header == names
    assert [[*map(_of_csv, line, row)] for line, row in zip(lines, rows, strict=True)] == rows
    asked = database.query(f"select {', '.join(map(quote_identifier, names))} from view_{view}")
    assert [list(row) for row in asked.rows] == rows
    monkeypatch.setenv("COLUMNS", "400")
    text = " ".join(call_of("--view", view).split())
    cells = [cell for line in call_of("--view", view, "--md").splitlines() for cell in line.split(" | ")[1:]]
    numbers = [cell for cell in (each.strip("| ") for each in cells) if NUMBER.fullmatch(cell)]
    assert len(numbers) >= len(rows)
    assert [cell for cell in numbers if cell not in text] == []


def _of_csv(cell: str, like: Any) -> Any:
    if isinstance(like, bool):
        return cell == "true"
    if isinstance(like, int | float):
        return type(like)(cell)
    return cell or None if like is None else cell


def test_a_number_of_a_case_is_the_same_in_all_views():
    cases = {each["case_id"]: each["values"] for each in json.loads(call_of("--json"))["cases"]}
    shown: dict[tuple[str, str], set[float]] = {}
    for view in all_views():
        rows = json.loads(call_of("--view", view, "--json"))["rows"]
        ids = [row.get("case_id") for row in rows]
        # of one row a case: others are about ranks, steps or trials
        if None not in ids and len(set(ids)) == len(ids):
            for row in rows:
                for name, value in row.items():
                    if isinstance(value, float) and name not in AMBIGUOUS:
                        shown.setdefault((row["case_id"], name), set()).add(value)
    assert len(shown) > 100
    assert {place: values for place, values in shown.items() if len(values) > 1} == {}
    of_cases = [(place, cases[place[0]][place[1]]) for place in shown if place[1] in cases[place[0]]]
    assert len(of_cases) > 40
    for place, told in of_cases:
        assert shown[place] == {told["interval"]["value"] if told["interval"] else told["value"]}, place


def test_raw_trials_are_the_same_in_sql_json_and_records():
    sql = "select case_name, round, tokens_per_s, memory_peak from trials where status = 'measured'"
    done = call("query", sql, str(SAMPLE), "--format", "json")
    assert done.returncode == 0, done.stderr
    asked = {(row["case_name"], row["round"]): row for row in json.loads(done.stdout)}
    assert len(asked) == 15
    for each in json.loads(call_of("--json"))["cases"]:
        for column in ("tokens_per_s", "memory_peak"):
            told = each["values"].get(column)
            for round_, value in zip(told["rounds"], told["trials"], strict=True) if told else ():
                assert asked[each["case"], round_][column] == value
    for file in SAMPLE.glob("trials/*/*/record.json"):
        record = json.loads(file.read_text())
        if record["status"] == "measured":
            row = asked[record["case"]["name"], record["round"]]
            assert row["tokens_per_s"] == record["values"]["tokens_per_s"]


def call_of(*flags: str) -> str:
    return output_of("show", str(SAMPLE), *flags)


def output_of(*words: str) -> str:
    """Return what a command prints, run in this process: a view has six forms, and there are twenty views."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(words) == 0
    return printed.getvalue()
