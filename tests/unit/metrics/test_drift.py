"""Steps that change while they are timed are told from steady ones whose noise lasts a few steps."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.findings import key_findings
from distbench.metrics.steptime.drift import are_slowing, are_unsettled, falling_p_value, relative_change
from distbench.record import Record
from support.records import case, info, measured, run_of

DDP = case("ddp")
TRIALS, PERSISTENCE = 3, 0.7


def report_rate(
    steps: int,
    noise: float,
    drift: float,
    cases: int = 500,
    test: Callable[[list[float], list[float]], bool] = are_unsettled,
) -> float:
    """Part of *cases* that pass *test*, whose step time changes by *drift* over each trial."""
    rng = np.random.default_rng(7)
    logs = rng.normal(0, noise, (steps, cases, TRIALS))
    for i in range(1, steps):
        logs[i] = PERSISTENCE * logs[i - 1] + (1 - PERSISTENCE**2) ** 0.5 * logs[i]
    times = np.exp(logs + np.linspace(0, drift, steps)[:, None, None]).transpose(1, 2, 0).tolist()
    told = [test([relative_change(t) for t in of], [falling_p_value(t) for t in of]) for of in times]
    return float(np.mean(told))


@pytest.mark.parametrize("steps", [11, 22])
def test_steady_steps_whose_noise_lasts_are_not_said_to_speed_up(steps):
    assert report_rate(steps, noise=0.05, drift=0.0) <= 0.02


@pytest.mark.parametrize(("steps", "noise", "found"), [(11, 0.01, 0.8), (22, 0.01, 0.95), (22, 0.02, 0.5)])
def test_steps_that_become_a_twentieth_faster_are_found(steps, noise, found):
    assert report_rate(steps, noise, drift=-0.05) >= found


def test_the_chances_of_steady_steps_are_chances():
    rng = np.random.default_rng(7)
    chances = [falling_p_value(series) for series in rng.normal(1, 0.05, (500, 20)).tolist()]
    assert np.mean(np.array(chances) < 0.05) <= 0.07
    assert np.mean(np.array(chances) < 0.5) == pytest.approx(0.5, abs=0.07)


@pytest.mark.parametrize(
    ("trials", "told"),
    [
        ([(-0.2, 1e-4), (0.01, 0.6), (0.02, 0.7)], False),
        ([(-0.10, 0.01), (-0.08, 0.02), (-0.09, 0.04)], True),
        ([(-0.02, 1e-4), (-0.02, 1e-4), (-0.09, 1e-4)], False),
        ([(-0.09, 1.0), (-0.09, 0.0)], False),
    ],
)
def test_a_case_is_judged_by_all_of_its_trials(trials, told):
    records = [measured(DDP, round_=i, drift=drift, drift_p=p) for i, (drift, p) in enumerate(trials)]
    sentences = key_findings(run_of(*records))
    assert any("still speeding up" in sentence for sentence in sentences) == told


@pytest.mark.parametrize("steps", [11, 22])
def test_steady_steps_whose_noise_lasts_are_not_said_to_slow_down(steps):
    assert report_rate(steps, noise=0.05, drift=0.0, test=are_slowing) <= 0.02
    assert report_rate(steps, noise=0.01, drift=0.05, test=are_slowing) >= 0.8


@pytest.mark.parametrize(
    ("trials", "told"),
    [
        ([(0.2, 1 - 1e-4), (-0.01, 0.4), (-0.02, 0.3)], False),
        ([(0.10, 0.99), (0.08, 0.98), (0.09, 0.96)], True),
        ([(-0.10, 0.01), (-0.08, 0.02), (-0.09, 0.04)], False),
        # a rising trend may have no chance at all to be a falling one
        ([(0.78, 1.0), (0.96, 1.0)], True),
    ],
)
def test_steps_that_become_slower_are_told(trials, told):
    records = [measured(DDP, round_=i, drift=drift, drift_p=p) for i, (drift, p) in enumerate(trials)]
    sentences = key_findings(run_of(*records))
    assert any("steps became slower during timing, by" in sentence for sentence in sentences) == told


def leaking(left: float, other: float, label: str = "ddp") -> Record:
    """A trial of four warm-up and six timed steps whose counted step left so much, and found so much."""
    rows = [
        {"rank": 0, "phase": phase, "activations": size, "other": other, "peak": 50e6 + other}
        for phase, size in (("forward", 20e6), ("backward", 10e6), ("step", left))
    ]
    one = measured(case(label))
    samples = {**one.samples, "step_s": [[0.1] * 6] * 2}
    return replace(one, samples=samples, warmup_losses=[[4.0] * 4] * 2, tables={"memory": rows})


@pytest.mark.parametrize(
    ("left", "other", "told"),
    [
        (1e6, 10e6, True),
        (1e6, 60e6, True),  # beside what was allocated once
        (4.0, 5056.0, False),  # as every training: its loss
        (4.0, 10e6, False),  # allocated once
        (10e6, 10e6, False),  # replaced by each step
        (0.2e6, 2e6, False),  # too little beside what the model needs
    ],
)
def test_memory_grows_if_each_step_left_as_much_as_the_counted_one(left, other, told):
    (*found,) = key_findings(run_of(leaking(left, other)))
    assert any("grows by 977 KiB with every step, to 9.54 MiB after 10" in each for each in found) == told


def test_a_finding_of_several_cases_is_told_once():
    records = [leaking(1e6, 10e6), leaking(1.2e6, 12e6, "fsdp")]
    named = [record.case for record in records]
    (told,) = [each for each in key_findings(RunAnalysis(info(*named), records)) if "grows" in each]
    assert told.startswith("fsdp: memory grows by 1.14 MiB") and told.endswith(
        "losses or logits; likewise ddp."
    )


@pytest.mark.parametrize(("peaks", "told"), [((9e6, 3e6), True), ((9e6, 5e6), False), ((9e6,), False)])
def test_a_rank_with_twice_the_peak_of_any_other_is_named(peaks, told):
    one = measured(DDP)
    record = replace(one, samples={**one.samples, "memory_peak": [[each] for each in peaks]})
    found = key_findings(run_of(record))
    assert ("ddp: rank 0 needs 8.58 MiB, every other rank at most 2.86 MiB." in found) == told
