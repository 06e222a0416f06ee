"""The view ``predictions``: what a probe foretold beside what was measured."""

import dataclasses

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.core.case import Batch, PluginChoice
from distbench.plan import PlannedCase
from distbench.report import page
from distbench.views.base import all_views
from support.probes import PASS_S, probe_of
from support.records import case, measured, run_info, run_of


def table(*records):
    return table_of(run_of(*records))


def table_of(run):
    return all_views()["predictions"].table(run)


ONE = case("single", 1, batch=Batch(8, 8, 1))
COLUMNS = {"step_s": {"unit": "s", "better": "lower", "over_ranks": "max", "doc": "Step."}}


def timed(of, seconds: float):
    record = measured(of, step_s=seconds)
    return dataclasses.replace(record, columns={**record.columns, **COLUMNS})


def test_a_row_has_the_signed_error():
    predicted = 8 * PASS_S
    shown = table(probe_of(ONE), timed(ONE, predicted * 2))
    (row,) = shown.records()
    assert row["compute_s"] == pytest.approx(predicted)
    assert row["error"] == pytest.approx(row["predicted_s"] / (2 * predicted) - 1)
    assert -0.5 < row["error"] < -0.4
    assert "1 case: median error" in shown.notes[0]
    assert "0 of 1 inside the interval" in shown.notes[0]


def test_the_chart_stacks_the_terms_beside_the_measured_step():
    ddp, fsdp, other = case("ddp"), case("fsdp"), case("tp", strategy=PluginChoice("nowhere"))
    run = run_of(probe_of(ddp), timed(ddp, 0.05), timed(fsdp, 0.09), timed(other, 0.02))
    (chart,) = all_views()["predictions"].charts(run)
    bars = {trace["name"]: trace for trace in chart.figure["data"]}
    assert {"compute", "communication", "bubble", "update", "90 % interval", "measured"} == set(bars)
    foretold = {row["case_name"]: row["predicted_s"] for row in table_of(run).records()}
    for place, label in enumerate(("ddp", "fsdp")):
        stacked = sum(bars[term]["x"][place] for term in ("compute", "communication", "bubble", "update"))
        assert stacked == pytest.approx(1000 * foretold[f"{label}/ws2/mb4/fp32"])
        assert bars["90 % interval"]["x"][place] == pytest.approx(stacked)
    assert bars["measured"]["x"] == [50, 90]
    assert all(len(trace["x"]) == 2 for trace in bars.values()), "a case without prediction has no bar"


def test_a_case_without_a_step_time_has_a_bar_and_no_mark():
    ddp = case("ddp")
    (chart,) = all_views()["predictions"].charts(run_of(probe_of(ddp), measured(ddp)))
    assert {trace["name"]: len(trace["x"]) for trace in chart.figure["data"]}["measured"] == 0


def test_a_run_without_a_probe_has_no_chart():
    assert [*all_views()["predictions"].charts(run_of(timed(ONE, 0.1)))] == []


def test_pairs_far_apart_are_in_order_or_not():
    ddp, fsdp = case("ddp"), case("fsdp")
    probe = probe_of(ddp)
    right = table(probe, timed(ddp, 0.05), timed(fsdp, 0.09))
    assert "1 of 1 pair more than 10 % apart in the right order." in right.notes
    wrong = table(probe, timed(ddp, 0.09), timed(fsdp, 0.05))
    assert "0 of 1 pair more than 10 % apart in the right order." in wrong.notes


def test_a_run_without_a_probe_says_how_to_get_one():
    shown = table(timed(ONE, 0.1))
    assert shown.rows == ()
    assert "probe: {}" in shown.notes[0]


def test_a_case_without_prediction_has_the_reason():
    other = case("single", 1, batch=Batch(8, 8, 1), seed=2, activation_checkpointing="full")
    shown = table(probe_of(ONE), timed(ONE, 0.1), timed(other, 0.2))
    assert [row["predicted_s"] is None for row in shown.records()] == [False, True]
    assert any("has another activation_checkpointing" in note for note in shown.notes)


def test_a_case_of_another_version_has_a_reason_that_names_the_plugin():
    other = case("ddp", strategy=PluginChoice("ddp", {"buckets_of_old": 3}))
    unknown = case("single", 1, workload=PluginChoice("nowhere"))
    shown = table(probe_of(ONE), probe_of(unknown), timed(ONE, 0.1), timed(other, 0.2))
    assert [row["predicted_s"] is None for row in shown.records()] == [False, True, True]
    assert any("can't read the options of ddp: " in note and "buckets_of_old" in note for note in shown.notes)


def test_a_case_that_was_only_predicted_is_not_recommended():
    ddp, fsdp = case("ddp"), case("fsdp")
    records = (probe_of(ddp), timed(ddp, 0.05))
    info = dataclasses.replace(run_info(*records), cases=[PlannedCase(ddp), PlannedCase(fsdp)])
    info = dataclasses.replace(info, suite={"name": "tiny", "measure": {"trials": 0}})
    run = RunAnalysis(info, records)
    (left,) = [one for one in run.candidates if one.id == fsdp.id]
    assert left.exclusion_reason == "predicted (--view predictions), not measured"
    shown = {row["strategy"]: row for row in all_views()["predictions"].table(run).records()}
    assert shown["fsdp"]["step_s"] is None
    assert shown["fsdp"]["predicted_s"] > 0
    assert run.selection.pick is None or run.selection.pick.id != fsdp.id


def test_a_run_with_nothing_but_a_probe_has_a_page(tmp_path):
    probe = probe_of(case("ddp"))
    info = dataclasses.replace(run_info(probe), cases=[PlannedCase(case("ddp"))])
    shown = all_views()["predictions"].table(RunAnalysis(info, (probe,)))
    assert [row["step_s"] for row in shown.records()] == [None]
    assert "predicted over measured" in page.write(tmp_path, RunAnalysis(info, (probe,))).read_text()
