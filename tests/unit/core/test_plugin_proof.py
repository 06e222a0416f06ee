"""What is added by files of its own is a full citizen: nothing else is edited, and nobody knows it by name.

``tests/plugins`` has the strategy ``echoed``, the launcher ``rack``, the metric ``pulse`` with a view, and
the kind of job ``tally``. Most of it is tried on stored records, and on a launcher that starts nothing.
"""

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.core.registry import PLUGIN_PATH_VARIABLE
from distbench.record import Record
from distbench.record.run_folder import Run
from support.records import COLUMNS, case, measured
from support.run_histories import stored
from support.runs import PLUGINS, QUICK, call, run_in
from support.suites import SuiteText, write_suite

PRETENDED = SuiteText("""
workload: {mlp: {}}
batch: {global_batch_size: 8}
measure: {warmup: 1, steps: 2, trials: 1}
metrics: [steptime, throughput]
world_sizes: [2]
strategies: [pretended]
""")
TALLIED = SuiteText("""
launcher: {rack: {values: {tallied_steps: TAKEN}}}
tally: {steps: 3}
gate: {tally: required, tokens_per_s: false, efficiency: false, peak_memory: false, comm_bytes: false}
""")
DDP, ECHOED = case("ddp"), case("echoed")
STATES = {"parameters": 1000, "gradients": 1000, "optimizer_state": 2000}
NOT_COVERED = {"buffers": 0, "activations": 0, "other": 0, "host": 0, "allocated": 5000, "peak": 5000}


def loaded(kind: str, name: str, **options: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PLUGIN_PATH_VARIABLE, PLUGINS)
        return registry.create_plugin(kind, PluginChoice(name, options))


def tables(calls: int, master: int) -> dict[str, list[dict[str, Any]]]:
    """What a rank reduced in *calls*, and how much it kept; both beside their theory."""
    seconds = {"seconds": 0.2, "transfer_s": 0.1, "wait_s": 0.1, "exposed_s": 0.05}
    group = {"group": "0,1", "group_size": 2, "dtype": "fp32"}
    size = {"bytes": 100_000.0, "wire_bytes": 100_000.0}
    moved = {"rank": 0, "step": 0, "op": "all_reduce", "ran": "all_reduce", **group, **size, **seconds}
    kept = {**STATES, **NOT_COVERED, "master": master, "states": 4000 + master}
    return {
        "collectives": [{**moved, "place": place} for place in range(calls)],
        "collectives_theory": [{"rank": 0, "op": "all_reduce", "bytes": 100_000.0}],
        "memory": [
            {"rank": 0, "phase": "step", **kept},
            {"rank": 0, "phase": "theory", **STATES, "master": 0, "states": 4000},
        ],
    }


def records() -> list[Record]:
    strategy, metric = loaded("strategies", "echoed"), loaded("metrics", "pulse")
    (column,), (spec,) = metric.columns, metric.tables
    beats = [{"rank": rank, "step": step, "volts": 1.0 + step} for rank in (0, 1) for step in (0, 1)]
    made = []
    for number, speed in enumerate((1000.0, 1010.0, 990.0)):
        common: dict[str, Any] = {"round_": number, "comm_bytes_theory": 100_000.0}
        ddp, echoed = measured(DDP, speed, **common), measured(ECHOED, speed, pulse_beats=4, **common)
        engine = {"engine": "DistributedDataParallel", "parameters": 250, "dtypes": {"reduce": "fp32"}}
        made += [
            dataclasses.replace(ddp, effective=engine, tables=tables(1, 0)),
            dataclasses.replace(
                echoed,
                effective={**engine, "echoes": 1},
                columns={**COLUMNS, column.name: dataclasses.asdict(column)},
                tables={**tables(2, 1000), "beats": beats},
                described_strategy=strategy.description(),
                described_tables={"beats": spec},
            ),
        ]
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """A run with records of the strategy and of the metric."""
    return stored(tmp_path_factory.mktemp("proof") / "run", 1, *records())


def view_text(run: Run, view: str, flag: str = "--view") -> dict[str, Any]:
    done = call("show", str(run.folder), flag, view, "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def query_rows(run: Run, sql: str) -> list[dict[str, Any]]:
    done = call("query", sql, str(run.folder), "--json")
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def page_sections(folder: Path) -> set[str]:
    """Anchors of the page of a run."""
    done = call("report", str(folder))
    assert done.returncode == 0, done.stderr
    return set(re.findall(r'id="([\w-]+)"', (folder / "report.html").read_text()))


# a strategy


def test_a_strategy_describes_its_own_settings(run):
    assert RunAnalysis.read(run).parity.findings == {}
    silent = [dataclasses.replace(each, described_strategy=None) for each in run.records()]
    findings = RunAnalysis(run.info(), silent).parity.findings
    assert {(each.key, each.kind) for each in findings[ECHOED.id]} == {("echoes", "unknown")}


def test_a_strategy_is_picked_by_its_own_simplicity(run):
    done = call("pick", str(run.folder), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pick"]["case"] == "echoed"


def test_a_strategy_explains_what_it_moves_and_keeps_beyond_theory(run):
    (moved,) = [note for note in notes(run, "communication") if "the echo" in note]
    assert "100 kB" in moved or "97.7 KiB" in moved
    assert "echoes = 1" in moved
    (kept,) = [note for note in notes(run, "memory") if "+25.0%" in note]
    assert kept.endswith("the echo keeps a copy of the weights.")


def notes(run: Run, view: str) -> Sequence[str]:
    told = view_text(run, view)
    return [str(note) for note in told["notes"]]


def test_no_format_of_adopt_guesses_what_a_strategy_of_a_plugin_does(run):
    done = call("adopt", str(run.folder), ECHOED.name, "--as", "torch")
    assert done.returncode == 2
    assert "echoed" in done.stderr and "plug-in" in done.stderr


# a launcher


def test_a_launcher_is_planned_for_its_own_machine(tmp_path):
    suite = write_suite(tmp_path, PRETENDED.replace("[2]", "auto") + "launcher: rack\n")
    planned = json.loads(call("plan", str(suite), "--json").stdout)
    assert [each["world_size"] for each in planned["cases"]] == [1, 2, 4]
    assert "rack node1 " in call("plan", str(suite), "--commands").stdout
    suite.write_text(PRETENDED.replace("[2]", "[8]") + "launcher: rack\n")
    assert "the rack has 4 devices" in call("plan", str(suite)).stderr


# a metric


def test_a_table_of_a_metric_is_a_view_and_a_table_of_sql(run):
    told = view_text(run, "beats", "--raw")
    assert told["caption"] == "One row a step and rank."
    assert {each["name"]: each["unit"] for each in told["columns"]}["volts"] == "V"
    assert len(told["rows"]) == 12
    assert query_rows(run, "select max(volts) as volts, max(pulse_beats) as beats from beats, trials") == [
        {"volts": 2.0, "beats": 4.0}
    ]
    documented = json.loads(call("query", "--tables", str(run.folder), "--json").stdout)
    (table,) = [each for each in documented if each["name"] == "beats"]
    assert {each["name"]: each["doc"] for each in table["columns"]}["volts"] == "How strong the beat was."


def test_a_view_is_a_chapter_and_a_table_of_sql_too(run):
    expected = {"case_name": ECHOED.name, "strongest": 2.0, "pulse_beats": 4.0}
    (row,) = view_text(run, "pulse")["rows"]
    assert expected.items() <= row.items()
    assert expected.items() <= query_rows(run, "from view_pulse")[0].items()
    assert "pulse" in page_sections(run.folder)


# a kind of job


@pytest.mark.parametrize(
    ("taken", "word", "gravity", "code"), [(3, "complete", "ok", 0), (2, "short", "bad", 1)]
)
def test_a_kind_of_job_is_run_judged_shown_and_gated(tmp_path, taken, word, gravity, code):
    text = PRETENDED + TALLIED.replace("TAKEN", str(taken))
    finished = run_in(tmp_path, text)
    assert finished.code == code, finished.errors
    (name,), (row,) = finished.cases, finished.cases.values()
    verdict = row["verdicts"]["tally"]
    assert (verdict["word"], verdict["gravity"]) == (word, gravity)
    assert ("Tally" in finished.errors) == (gravity == "bad")
    made = Run(finished.folder)
    assert [file.parts[-4] for file in finished.folder.glob("*/*/*/record.json")].count("tallies") == 1
    assert [each["tallied_steps"] for each in view_text(made, "tally")["rows"]] == [2 * taken]
    assert query_rows(made, "select case_name, tallied_steps from view_tally") == [
        {"case_name": name, "tallied_steps": 2.0 * taken}
    ]
    assert query_rows(made, "select kind, tallied_steps from jobs") == [
        {"kind": "tally", "tallied_steps": 2.0 * taken}
    ]
    assert "tally" in page_sections(finished.folder)
    gated = call(
        "gate", str(tmp_path / "suite.yaml"), "--self-test", "--json", "--out", str(tmp_path / "gate")
    )
    assert gated.returncode == code, gated.stderr
    (of_case,) = json.loads(gated.stdout)["cases"]
    words = {each["metric"]: each["word"] for each in of_case["findings"]}
    assert words["tally"] == ("pass" if gravity == "ok" else "invalid")


# all of them, in one run on real processes

REAL = """
launcher: {rack: {real: true}}
strategies: [ddp, echoed]
metrics: [steptime, throughput, communication, memory, pulse]
tally: {steps: 3}
"""


@pytest.mark.train
def test_all_of_it_is_run_together(tmp_path):
    finished = run_in(tmp_path, QUICK + REAL)
    assert finished.code == 0, finished.errors
    assert {row["status"] for row in finished.cases.values()} == {"measured"}
    assert {row["verdicts"]["tally"]["word"] for row in finished.cases.values()} == {"complete"}
    assert [row["parity"] for row in finished.cases.values()] == [[], []]
    run = Run(finished.folder)
    assert any("the echo" in note for note in notes(run, "communication"))
    assert any("the echo" in note for note in notes(run, "memory"))
    assert [row["pulse_beats"] for row in view_text(run, "pulse")["rows"]] == [6.0, 6.0]
    assert view_text(run, "tally_curve", "--raw")["caption"] == "One row a step and rank of a tally."
    assert query_rows(run, "select count(*) as steps from tally_curve where loss > 0") == [{"steps": 12}]
    assert {"pulse", "tally"} <= page_sections(finished.folder)
