"""Views of a run: typed tables that text, Markdown, JSON and CSV are rendered from."""

import csv
import io
import json
import shutil
from unicodedata import combining, east_asian_width

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.record.run_folder import Run
from distbench.report.page import chapters
from distbench.tables.table import Field, Table, TableCell, TableRow
from distbench.tables.text_table import TextRow, layout_lines
from distbench.views.base import all_views
from support.records import case, measured, stored_run
from support.runs import call
from support.stored_runs import FROZEN, SAMPLE

pytestmark = pytest.mark.usefixtures("read_once")
WITHOUT_ROWS = ("scaling", "links", "rates", "timeline", "pipeline", "cost", "disk", "layers", "loader")
WITHOUT_ROWS += ("engines", "predictions")
FORMS = ("", "--json", "--csv", "--md")
NOT_REQUESTED = {
    "predictions",
    "convergence",
    "checkpoint",
    "links",
    "rates",
    "disk",
    "pipeline",
    "layers",
    "loader",
}
NOT_REQUESTED |= {"engines"}
FIELDS = (
    Field("case_name", "case", type="varchar"),
    Field("case_id", "", type="varchar"),
    Field("seconds", "a" * 30, "Time.", "s", "lower"),
    Field("good", "b" * 30, type="boolean"),
)


def view_table(*rows: TableRow) -> Table:
    return Table("Title", "Caption.", FIELDS, rows, ("A note.",))


def test_a_name_that_is_too_long_gets_a_line_of_its_own_and_is_never_cut():
    names = ["fsdp-grad-op+offload+" + end + "/ws1/mb16" for end in ("a" * 20, "b" * 20)]
    shown = view_table(*(TableRow({"case_name": name, "seconds": 1.0}, "group") for name in names)).to_text(
        80
    )
    lines = shown.splitlines()
    assert list(dict.fromkeys(line for line in lines if line in names)) == names
    assert max(map(len, lines)) <= 80
    assert "group" in lines


def test_programs_get_values_where_people_get_words_and_both_learn_what_is_absent():
    made = view_table(
        TableRow(
            {"case_name": TableCell("ddp/ws2", "ddp[a]"), "case_id": "x", "seconds": 0.0123456, "good": True}
        ),
        TableRow({"case_name": "fsdp", "seconds": TableCell(None, reason="no clock"), "good": float("inf")}),
    )
    assert list(made.texts()) == [("ddp[a]", "12.3 ms", "yes"), ("fsdp", "–", "inf")]
    assert made.records() == [
        {"case_name": "ddp/ws2", "case_id": "x", "seconds": 0.0123456, "good": True},
        {"case_name": "fsdp", "case_id": None, "seconds": None, "good": None},
    ]
    told = json.loads(json.dumps(made.to_json(), allow_nan=False))
    assert [row.get("absent") for row in told["rows"]] == [None, {"seconds": "no clock"}]
    assert [(each["name"], each["unit"], each["better"]) for each in told["columns"]][2] == (
        "seconds",
        "s",
        "lower",
    )
    header, first, second = csv.reader(io.StringIO(made.to_csv()))
    assert header == ["case_name", "case_id", "seconds", "good"]
    assert first == ["ddp/ws2", "x", "0.0123456", "true"]
    assert second == ["fsdp", "", "", ""]
    assert made.to_markdown().splitlines()[2] == "| ddp&#91;a&#93; | 12.3 ms | yes |"


def test_a_sentence_in_place_of_numbers_is_folded_once():
    lines = view_table(TableRow({"case_name": "ddp"}, sentence="crashed: " + "word " * 200)).to_text_lines(80)
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("view", all_views())
def test_every_view_is_the_same_table_as_text_json_csv_and_markdown(view):
    done = {form: call("show", str(FROZEN), "--view", view, *form.split()) for form in FORMS}
    assert [each.returncode for each in done.values()] == [0] * 4, done
    told = json.loads(done["--json"].stdout)
    assert told["view"] == view
    assert told["rows"] or view in WITHOUT_ROWS, "the frozen run has none"
    names = [column["name"] for column in told["columns"]]
    header, *rows = csv.reader(io.StringIO(done["--csv"].stdout))
    assert header == names
    assert len(rows) == len(told["rows"])
    assert all(column["doc"] for column in told["columns"]), view
    assert len(done["--md"].stdout.splitlines()) >= len(rows) + 2
    title, caption, *_ = done[""].stdout.splitlines()
    assert title == told["title"]
    assert caption


@pytest.mark.parametrize("view", sorted(set(all_views()) - NOT_REQUESTED - {"scaling", "cost"}))
def test_every_view_of_the_sample_has_rows(view):
    done = call("show", str(SAMPLE), "--view", view, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told["rows"]) > 3
    known = {key for row in told["rows"] for key, value in row.items() if value is not None}
    assert len(known) > 3


def test_the_view_of_scaling_has_the_efficiency_of_each_strategy_on_each_number_of_devices(tmp_path):
    pace = {("ddp", 1): 100.0, ("ddp", 2): 150.0, ("fsdp", 1): 100.0, ("fsdp", 2): 120.0}
    records = [measured(case(label, devices), tokens) for (label, devices), tokens in pace.items()]
    run = stored_run(tmp_path, *records)
    table = json.loads(call("show", str(run.folder), "--view", "scaling", "--json").stdout)
    efficiency = {(row["series"], row["devices"]): row["efficiency"] for row in table["rows"]}
    assert efficiency == {("ddp", 1): 1.0, ("ddp", 2): 0.75, ("fsdp", 1): 1.0, ("fsdp", 2): 0.6}


@pytest.mark.parametrize("view", sorted(NOT_REQUESTED))
def test_a_view_for_which_a_run_has_nothing_says_so_in_a_line(view):
    told = json.loads(call("show", str(SAMPLE), "--view", view, "--json").stdout)
    assert told["rows"] == []
    assert len(told["notes"]) == 1


def test_a_run_that_was_not_checked_says_how_it_can_be(tmp_path):
    unchecked = tmp_path / "run"
    shutil.copytree(SAMPLE, unchecked, ignore=shutil.ignore_patterns("checks"))
    done = call("show", str(unchecked), "--view", "equivalence")
    assert done.returncode == 0, done.stderr
    assert "--check" in done.stdout.splitlines()[-1]


def test_a_view_that_is_not_there_is_refused_with_those_that_are():
    done = call("show", str(SAMPLE), "--view", "memry")
    assert done.returncode == 2
    assert "--view = 'memry'" in done.stderr
    assert all(name in done.stderr for name in all_views())


def test_any_table_of_the_records_is_shown_as_they_or_their_metric_describe_it():
    told = json.loads(call("show", str(FROZEN), "--raw", "collectives", "--json").stdout)
    assert told["table"] == "collectives"
    described = {column["name"]: column for column in told["columns"]}
    assert described["wire_bytes"]["unit"] == "B"
    assert described["wire_bytes"]["doc"]
    assert {row["op"] for row in told["rows"]} == {"all_reduce"}
    told = json.loads(call("show", str(FROZEN), "--raw", "converge_curve", "--json").stdout)
    assert {row["step"] for row in told["rows"]} == set(range(1, 9))


def test_a_table_that_has_the_name_of_a_view_is_shown_whole():
    view, raw = (
        json.loads(call("show", str(FROZEN), flag, "memory", "--json").stdout) for flag in ("--view", "--raw")
    )
    assert "phase" not in view["rows"][0]
    assert {row["phase"] for row in raw["rows"]} >= {"forward", "backward", "step"}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            ("--view", "collectives"),
            "--view = 'collectives': it is a table of the records; use --raw collectives",
        ),
        (("--raw", "collectivs"), "--raw = 'collectivs': did you mean 'collectives'?"),
        (("--raw", "diagnosis"), "--raw = 'diagnosis': "),
        (("--raw", "memory", "--view", "memory"), "use only one of --view and --raw"),
    ],
)
def test_a_word_that_is_no_table_or_no_view_is_refused(asked, told):
    done = call("show", str(FROZEN), *asked)
    assert done.returncode == 2
    assert told in done.stderr


PLUGIN = """
from typing import ClassVar

from distbench.tables.table import Field, TableRow
from distbench.views.base import CASE_FIELDS, View, case_cells


class Losses(View):
    "Final loss of each case."

    title: ClassVar[str] = "Final losses"
    fields: ClassVar[tuple[Field, ...]] = (*CASE_FIELDS, Field("final_loss", "loss", "Final loss.", "",
    "lower"))

    def table(self, run):
        cases = [row for row in run.cases if "final_loss" in row.values]
        return self.make_table(
            [TableRow({**case_cells(row.case), "final_loss": row.values["final_loss"].value}) for row in
        cases] )
"""


def test_a_file_in_a_plug_in_folder_is_a_word_a_chapter_and_a_table(tmp_path, monkeypatch):
    (tmp_path / "views").mkdir()
    (tmp_path / "views" / "losses.py").write_text(PLUGIN)
    monkeypatch.setenv("DISTBENCH_PLUGINS", str(tmp_path))
    rows = json.loads(call("show", str(FROZEN), "--view", "losses", "--json").stdout)["rows"]
    assert len(rows) == 2
    sql = "select case_name, final_loss from view_losses"
    asked = json.loads(call("query", sql, str(FROZEN), "--json").stdout)
    assert asked == [{key: row[key] for key in ("case_name", "final_loss")} for row in rows]
    run = RunAnalysis.read(Run(FROZEN))
    assert chapters(run)[-1].title == "Final losses"


def test_a_table_is_aligned_by_what_characters_take_in_a_terminal():
    names = ["ddp", "模型/ws2", "mode\u0301le"]
    rows = [TextRow([name, f"{10**i}"], ["", ""]) for i, name in enumerate(names)]
    lines = layout_lines(["case", "tokens/s"], rows, [True, False], 80, lambda text, tone: text)
    # a wide character takes two cells, a combining one none
    cells = [
        sum(0 if combining(each) else 1 + (east_asian_width(each) in "WF") for each in line) for line in lines
    ]
    assert len(lines) == 4
    assert len(set(cells)) == 1
