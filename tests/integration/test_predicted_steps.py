"""Predictions of steps and peak memory beside what this machine measures in the same run.

Times are those of a machine that others use: what is asserted of them holds on any. Bytes are exact.
"""

from __future__ import annotations

import itertools
import statistics

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.prediction import MemoryPrediction, StepPrediction
from distbench.record.run_folder import Run
from support.runs import call
from support.suites import write_suite

COMMON = """
workload: {transformer: {preset: tiny, seq_len: SEQ_LEN}}
data: synthetic
batch: {global_batch_size: 16}
world_sizes: [2]
limits: {step: 60}
launcher: kept
metrics: [steptime, throughput, memory]
"""
REFUSED = {"ddp+powersgd2": "lossy communication: its compression is not probed"}
SUITES = {
    "few": COMMON.replace("SEQ_LEN", "32")
    + """
probe: {seconds: 3}
measure: {warmup: 2, steps: 2, trials: 1, profile_steps: 0}
strategies:
  - ddp: {powersgd_rank: [0, 2]}
  - fsdp
""",
    "all": COMMON.replace("SEQ_LEN", "128")
    + """
probe: {seconds: 20}
measure: {warmup: 2, steps: 6, trials: 2, profile_steps: 0}
strategies:
  - ddp: {powersgd_rank: [0, 2]}
  - fsdp: {sharding: [full, grad_op]}
  - zero: {stage: [1, 2, 3]}
  - tp: {sequence_parallel: [false, true]}
  - cp
  - pp: {schedule: [GPipe, 1F1B]}
""",
}
NUMBER_OF_CASES = {"few": 2, "all": 11}
FAR_APART = 1.3
"""Ratio of two measured steps from which their order is that of the cases, not of the machine's moments."""
WIDENED = 1.5
"""Factor on both sides of an interval, for a machine that others use."""


@pytest.fixture(scope="module", params=["few", pytest.param("all", marks=pytest.mark.deep)])
def run(request, tmp_path_factory) -> RunAnalysis:
    folder = tmp_path_factory.mktemp("predicted")
    suite = write_suite(folder, SUITES[request.param])
    done = call("run", str(suite), "--out", str(folder / "out"), "--quiet")
    assert done.returncode == 0, done.stderr
    (made,) = (folder / "out").iterdir()
    found = RunAnalysis.read(Run(made))
    assert all(row.measured for row in found.cases), [(row.case.name, row.reason) for row in found.cases]
    assert len(predicted(found)) == NUMBER_OF_CASES[request.param]
    assert len(found.cases) == len(predicted(found)) + len(REFUSED)
    return found


def predicted(run: RunAnalysis) -> dict[str, StepPrediction]:
    """Predicted step by case id, of the cases that have one."""
    return {
        case_id: each.step
        for case_id, each in run.predictions.items()
        if isinstance(each.step, StepPrediction)
    }


def measured_and_predicted(run: RunAnalysis) -> list[tuple[float, StepPrediction]]:
    """Measured seconds of a step, and the prediction, of the cases that have both."""
    steps = predicted(run)
    return [(row.values["step_s"].value, steps[row.case.id]) for row in run.cases if row.case.id in steps]


def peak_errors(run: RunAnalysis) -> dict[str, float]:
    """Predicted over measured peak less 1, by label, of the cases with a predicted step.

    The smallest of the trials counts: beside other work gloo's threads may keep several copies at once.
    """
    peaks = {
        row.case.id: min(
            record.values["memory_peak"] for record in run.timed_records if record.case_id == row.case.id
        )
        for row in run.cases
    }
    errors = {}
    for row in run.cases:
        memory = run.predictions[row.case.id].memory
        if row.case.id in predicted(run):
            assert isinstance(memory, MemoryPrediction), (row.case.name, memory)
            assert sum(memory.kinds.values()) == pytest.approx(memory.peak.value)
            errors[row.case.label] = memory.peak.value / peaks[row.case.id] - 1
    return errors


def test_a_prediction_is_the_sum_of_its_terms(run):
    steps = predicted(run)
    assert steps
    for step in steps.values():
        assert sum(step.terms.values()) == pytest.approx(step.seconds.value)
        assert 0 < step.seconds.low < step.seconds.value < step.seconds.high
        assert step.terms["compute"] > 0 and step.terms["communication"] > 0
        assert step.unpredicted_part == ""


def test_predicted_peaks_are_those_of_the_ranks(run):
    errors = peak_errors(run)
    assert len(errors) == len(predicted(run))
    assert {label: error for label, error in errors.items() if abs(error) > 0.08} == {}
    # the threads of gloo may keep the copies of FSDP's collectives at once
    assert statistics.median_low(map(abs, errors.values())) < 0.02


def test_a_case_that_nothing_is_predicted_of_says_why(run):
    refused = {
        row.case.label: run.predictions[row.case.id].step
        for row in run.cases
        if row.case.id not in predicted(run)
    }
    assert refused == REFUSED


@pytest.mark.deep
@pytest.mark.parametrize("run", ["all"], indirect=True)
def test_cases_far_apart_are_predicted_in_the_right_order(run):
    pairs = [
        (one < two) == (first.seconds.value < second.seconds.value)
        for (one, first), (two, second) in itertools.combinations(measured_and_predicted(run), 2)
        if max(one, two) > FAR_APART * min(one, two)
    ]
    assert len(pairs) >= 5
    assert sum(pairs) >= 0.8 * len(pairs)


@pytest.mark.deep
@pytest.mark.parametrize("run", ["all"], indirect=True)
def test_most_steps_are_inside_a_widened_interval(run):
    pairs = measured_and_predicted(run)
    inside = [step.seconds.low / WIDENED < measured < step.seconds.high * WIDENED for measured, step in pairs]
    assert sum(inside) > len(inside) / 2
