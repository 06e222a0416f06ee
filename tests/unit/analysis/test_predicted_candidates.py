"""Cases that were only predicted: worth a measurement, and never recommended."""

import dataclasses
import json

import pytest

from distbench.analysis.choice import Requirements, select_case
from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.recommendation import recommend
from distbench.api.pick import pick_case
from distbench.cli import main
from distbench.core.units import format_bytes
from distbench.plan import PlannedCase
from distbench.report import page
from distbench.report.page_data import picker_data
from distbench.report.recommendation import recommendation_json
from support.probes import DDP, FSDP, SMALL, partly_measured, predicted_speed
from support.records import measured, run_info, stored_run


def candidate(run: RunAnalysis, of):
    return next(one for one in run.candidates if one.id == of.id)


def test_a_case_whose_interval_reaches_the_best_measured_one_is_to_be_measured():
    speed = predicted_speed(partly_measured(), DDP)
    run = partly_measured(speed, speed * 1.01)
    small = candidate(run, SMALL)
    assert small.exclusion_reason.startswith("predicted: measure it (")
    # ddp is as fast as predicted, so that nothing is corrected
    assert small.predicted.value == pytest.approx(predicted_speed(run, SMALL), rel=0.01)
    assert small.predicted.low < small.predicted.value < small.predicted.high
    assert run.selection.pick.id == DDP.id
    assert small in run.selection.to_measure


def test_a_case_that_cannot_reach_it_is_no_more_than_predicted():
    run = partly_measured(predicted_speed(partly_measured(), DDP))
    assert candidate(run, FSDP).predicted is None
    assert candidate(run, FSDP).exclusion_reason == "predicted (--view predictions), not measured"


def test_the_error_of_the_measured_cases_corrects_the_others():
    run = partly_measured(3 * predicted_speed(partly_measured(), DDP))
    small = candidate(run, SMALL).predicted
    assert small.value == pytest.approx(3 * predicted_speed(run, SMALL))
    assert f"{small.value:,.0f}"[:4] in candidate(run, SMALL).exclusion_reason


def test_cases_that_the_suite_asks_no_trials_of_are_not_asked_for():
    run = partly_measured(trials=0)
    assert [one.predicted for one in run.candidates] == [None, None, None]


def test_a_run_without_a_probe_has_none():
    record = measured(DDP, 1000.0)
    info = dataclasses.replace(run_info(record), cases=[PlannedCase(each) for each in (DDP, FSDP, SMALL)])
    assert RunAnalysis(info, (record,)).selection.to_measure == ()


@pytest.mark.parametrize("goal", ["throughput", "memory"])
def test_it_is_never_recommended_however_fast_it_may_be(goal):
    run = partly_measured(predicted_speed(partly_measured(), DDP) / 100, cases=(DDP, SMALL))
    # a hundred times slower than predicted, and so is all: only the other case may be faster
    assert run.selection.to_measure
    assert pick_case(run, goal=goal).case.case.id == DDP.id
    nothing = partly_measured()
    found = recommend(nothing)
    assert nothing.selection.pick is None
    assert found.headline == (
        "No recommendation for 2 devices: none was measured yet; 3 cases may be fastest by prediction."
    )
    assert "Measure them with distbench tune --resume RUN." in found.reasons[0]


def test_wishes_apply_to_it_as_to_the_others():
    run = partly_measured(predicted_speed(partly_measured(), DDP))
    least = candidate(run, SMALL).predicted_memory

    def open_(**wish) -> list[str]:
        return [one.id for one in select_case(run.candidates, Requirements(**wish)).to_measure]

    assert open_() == open_(memory=least * 1.01) == [SMALL.id]
    assert open_(memory=least * 0.99) == open_(avoid=("ddp-*",)) == []
    tight = select_case(run.candidates, Requirements(memory=least * 0.99))
    told = f"predicted: does not fit (at least {format_bytes(least)})"
    assert [why for one, why in tight.excluded if one.id == SMALL.id] == [told]


def test_text_json_and_page_agree(tmp_path, capsys):
    speed = predicted_speed(partly_measured(), DDP)
    run = partly_measured(speed, speed * 1.01)
    told = candidate(run, SMALL).exclusion_reason
    stored_run(tmp_path, *run.records, cases=run.info.cases, suite=run.info.suite)

    assert main(["pick", "tiny", "--out", str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("Train with ddp on 2 devices")
    numbers = told.removeprefix("predicted: measure it ")
    assert f"By prediction, not measured: ddp-small {numbers} may be faster." in text
    assert f"Predicted, worth measuring: ddp-small {numbers}." in text

    assert main(["pick", "tiny", "--out", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (open_,) = found["to_measure"]
    assert (open_["case"], open_["tokens_per_s"]) == ("ddp-small", None)
    assert open_["predicted_tokens_per_s"] == pytest.approx(vars(candidate(run, SMALL).predicted))
    assert {each["case"]: each["why"] for each in found["left_out"]}["ddp-small"] == told
    assert found["pick"]["case"] == "ddp"
    assert found["pick"]["predicted_tokens_per_s"] is found["pick"]["predicted_memory_bytes"] is None
    assert open_["predicted_memory_bytes"] == candidate(run, SMALL).predicted_memory
    assert all(open_["case_id"] != each["case_id"] for each in found["ranked"])

    offered = {each["id"]: each for each in picker_data(run)["data"]["candidates"]}
    assert offered[SMALL.id]["exclusion_reason"] == told
    assert [offered[each.id].get("predicted") for each in (DDP, FSDP, SMALL)] == [None, None, True]
    shown = page.write(tmp_path, run).read_text()
    assert f"ddp-small {numbers} may be faster" in shown


def test_what_does_not_fit_by_prediction_is_told_with_the_bytes_that_it_needs(tmp_path, capsys):
    speed = predicted_speed(partly_measured(), DDP)
    run = partly_measured(speed, speed * 1.01)
    least = candidate(run, SMALL).predicted_memory
    stored_run(tmp_path, *run.records, cases=run.info.cases, suite=run.info.suite)

    assert main(["pick", "tiny", "--out", str(tmp_path), "--memory", "1KB", "--json"]) == 1
    (left,) = [
        each for each in json.loads(capsys.readouterr().out)["left_out"] if each["case"] == "ddp-small"
    ]
    assert left["predicted_memory_bytes"] == least
    assert left["why"] == f"predicted: does not fit (at least {format_bytes(least)})"


def test_what_waits_for_a_measurement_is_in_python_too():
    run = partly_measured(predicted_speed(partly_measured(), DDP))
    picked = pick_case(run)
    assert [one.name for one in picked.selection.to_measure] == ["ddp-small"]
    assert recommendation_json(picked.recommendation, picked.selection, [])["to_measure"]
