"""A stored run in Python: what the command line says of it, as objects."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import distbench as db
from distbench.record import parquet
from distbench.report import page
from support.fuzzing import describe
from support.records import case, measured, stored_run
from support.run_histories import stored

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "reports" / "sample"


@pytest.fixture(scope="module")
def run() -> db.Run:
    return db.load(SAMPLE)


def test_a_run_is_found_by_its_folder_and_by_the_start_of_its_name(run):
    assert db.load("samp", out=ROOT / "reports").folder == SAMPLE
    assert repr(run) == "<distbench.Run a91148a7 of zero: 6 cases, finished>"


def test_cases_are_those_that_are_shown(run, command):
    code, shown, _ = command("show", str(SAMPLE), "--json")
    cases = json.loads(shown)["cases"]
    assert code == 0
    assert [row.case.name for row in run.cases] == [each["case"] for each in cases]
    ddp = run.case("ddp")
    (stated,) = [each["values"]["tokens_per_s"] for each in cases if each["label"] == "ddp"]
    assert ddp.values["tokens_per_s"].low == stated["low"]


def test_each_table_has_the_rows_that_a_query_has(run, command):
    assert len(run.tables) > 30
    for name in ("trials", "steps", "memory", "view_memory"):
        code, printed, _ = command("query", f"select * from {name}", str(SAMPLE), "--json")
        rows = run.table(name, "records")
        assert code == 0
        assert [list(row) for row in rows] == [list(row) for row in json.loads(printed)]
        assert len(rows) > 1


def test_every_chart_of_the_report_is_a_figure_with_its_marks(run):
    charts = page.charts(run.analysis)
    assert run.figures == list(charts)
    assert len(charts) > 10
    for name in run.figures:
        figure = run.figure(name)
        assert figure.layout.title.text == charts[name].title
        assert figure.data, name
        # what the page's scripts alone understand is no property of plotly
        assert "pair" not in figure.to_plotly_json()["layout"]


def test_a_chart_that_offers_a_choice_of_cases_shows_the_two_of_the_page(run):
    about = page.charts(run.analysis)["timeline-lanes"].figure["layout"]["pair"]
    figure = run.figure("timeline-lanes")
    assert {trace.meta for trace in figure.data} == set(about["chosen"])
    assert {trace.yaxis for trace in figure.data} == {"y", "y2"}
    names = [about["cases"][place]["name"] for place in about["chosen"]]
    assert [each.text for each in figure.layout.annotations] == [f"<b>{name}</b>" for name in names]


@pytest.mark.parametrize(
    ("wishes", "options"),
    [
        ({"memory": "70MiB"}, ["--memory", "70MiB"]),
        ({"memory": 70 * 2**20}, ["--memory", "70MiB"]),
        ({"goal": "memory", "within": 0.3, "devices": 2}, ["--goal", "memory", "--within", "30%"]),
        ({"avoid": "zero*"}, ["--avoid", "zero*"]),
        ({"memory": "1KiB"}, ["--memory", "1KiB"]),
    ],
    ids=str,
)
def test_a_case_is_recommended_as_on_the_command_line(run, command, wishes, options):
    picked = run.pick(**wishes)
    _, printed, _ = command("pick", str(SAMPLE), *options, "--json")
    stated = json.loads(printed)
    assert str(picked) == "\n".join([stated["headline"], *(f"- {reason}" for reason in stated["reasons"])])
    assert (picked.case and picked.case.case.id) == (stated["pick"] and stated["pick"]["case_id"])
    assert [row["case"] for row in picked.table("records")] == [each["case"] for each in stated["ranked"]]


def test_runs_are_compared_as_on_the_command_line(tmp_path, command):
    for day, speed in enumerate((1000.0, 1001.0, 1002.0, 1400.0)):
        records = [measured(case(), speed + round_, round_=round_) for round_ in range(3)]
        stored(tmp_path / f"tiny-{day}", day, *records)
    first, last = db.load(tmp_path / "tiny-0"), db.load(tmp_path / "tiny-3")
    compared = first.compare(last)
    code, printed, _ = command(
        "compare", str(first.folder), str(last.folder), "--out", str(tmp_path), "--json"
    )
    (stated,) = json.loads(printed)
    assert code == 0
    (row,) = compared.table("records")
    assert repr(compared) == str(compared)
    assert row["tokens_per_s"] == stated["cases"][0]["changes"]["tokens_per_s"]["ratio"]["value"]
    assert "1 measurably faster" in str(compared)
    # an ID is looked for beside the run
    assert str(first.compare("tiny-3")) == str(compared)


def test_a_run_compared_with_itself_is_warned_of(run):
    with pytest.warns(UserWarning, match="is compared with itself, so nothing can differ"):
        assert "there is nothing to compare" in str(run.compare(SAMPLE))


def test_a_notebook_shows_the_recommendation_and_the_cases_without_acting_on_names(tmp_path):
    hostile = "<script>alert(1)</script>"
    first = measured(case(), 1000.0)
    made = stored_run(tmp_path, first, suite_name=hostile)
    shown = db.load(made.folder)._repr_html_()
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    assert "1,000" in shown
    assert "<td" in shown


def test_a_trial_that_can_not_be_read_is_warned_of_and_left_out(tmp_path):
    folder = Path(shutil.copytree(SAMPLE, tmp_path / "run"))
    sorted(folder.glob("trials/ddp-*/0/record.json"))[0].write_text("{")
    with pytest.warns(UserWarning, match="1 trial is damaged and skipped: .*see distbench check"):
        run = db.load(folder)
    assert run.case("ddp").trials == db.load(SAMPLE).case("ddp").trials - 1


def test_a_table_of_other_content_than_its_record_says_loses_one_trial(tmp_path):
    folder = Path(shutil.copytree(SAMPLE, tmp_path / "run"))
    file = sorted(folder.glob("trials/ddp-*/0/memory.parquet"))[0]
    parquet.write(file, {"x": [1]}, {})
    describe(file)
    run = db.load(folder)
    before = run.case("ddp").trials
    with pytest.warns(UserWarning, match="1 trial is damaged and skipped"):
        assert run.table("view_memory", "records")
    assert run.case("ddp").trials == before - 1


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    """Modules of distbench, and of torch, that a process has after each use."""
    uses = {
        "import": "import distbench as db",
        "dir": "dir(db)",
        "all": f"""
run = db.load({str(SAMPLE)!r})
run.cases, run.table("trials", "records"), run.pick(), run.figure(run.figures[0]), run._repr_html_()
""",
    }
    code = "import sys\n" + "\n".join(f"{use}\nprint({name!r}, *sys.modules)" for name, use in uses.items())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: set(modules) for name, *modules in lines}


def test_an_import_costs_nothing(imported):
    for name in ("import", "dir"):
        own = {each for each in imported[name] if each.startswith("distbench")}
        assert own == {"distbench"}
    assert not {"numpy", "pandas", "plotly", "duckdb"} & imported["import"]


def test_runs_are_read_without_torch(imported):
    assert {"distbench.api.run", "plotly.graph_objects", "duckdb"} <= imported["all"]
    assert not {"torch", "deepspeed", "pandas", "polars", "pyarrow"} & imported["all"]


def test_run_is_the_function_whoever_has_imported_the_package_of_that_name():
    import distbench.run
    from distbench.run import RunExecution

    assert sys.modules["distbench.run"].RunExecution is RunExecution
    assert db.run is distbench.run
    assert db.run.__module__ == "distbench.api.suite_run"


def test_type_checkers_see_each_public_name():
    stub = (ROOT / "distbench" / "__init__.pyi").read_text()
    typed = {*re.findall(r"import (\w+) as \1$", stub, re.MULTILINE), *re.findall(r"^(\w+) = ", stub, re.M)}
    assert typed == set(db._PLACES)
    assert typed <= set(dir(db))
    assert all(getattr(db, name).__doc__ for name in typed)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(db, "noth" + "ing")
