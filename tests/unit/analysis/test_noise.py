"""Intervals hold the truth as often as they say, and a choice by them costs little: drawn runs, fixed seeds.

18 cases on one number of devices: speeds over 30 %, trials with noise of 6 %.
``deep`` draws more of them, over more kinds of noise and numbers of trials.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from distbench.analysis.choice import Requirements, select_case
from distbench.analysis.run import RunAnalysis
from distbench.analysis.statistics.block_model import fit_blocks, outlier_rounds
from distbench.analysis.statistics.distributions import studentized_range_quantile
from distbench.analysis.statistics.intervals import ConfidenceInterval, intervals, noise_of
from distbench.analysis.wording.findings import key_findings
from support.random_runs import (
    CASES,
    NOISE,
    candidate,
    coverage,
    heavy_tails,
    lasting,
    normal,
    speeds,
    tally,
)
from support.records import case, info, measured
from support.simulations import drawn


def equal_noise(rng: np.random.Generator, trials: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(CASES), NOISE * rng.standard_normal((CASES, trials))


def two_noisy_cases(rng: np.random.Generator, trials: int) -> tuple[np.ndarray, np.ndarray]:
    scale = np.full((CASES, 1), NOISE / 3)
    scale[:2] *= 5
    return speeds(rng), scale * rng.standard_normal((CASES, trials))


def drifting_machine(rng: np.random.Generator, trials: int) -> tuple[np.ndarray, np.ndarray]:
    """The machine becomes faster by three deviations over the run; each round has an order of its own."""
    place = np.stack([rng.permutation(CASES) + CASES * number for number in range(trials)], axis=1)
    drift = 3 * NOISE * (place / (CASES * trials) - 0.5)
    return speeds(rng), drift + NOISE * rng.standard_normal((CASES, trials))


@drawn(400)
def test_the_pick_costs_little_speed(draws):
    found = tally(normal, 3, draws, 1)
    assert np.mean(found.loss) <= 0.018
    assert np.mean(np.array(found.loss) > 0.1) <= 0.01
    assert 0.93 <= np.mean(found.held) <= 0.97


def two_noisy_by_far(rng: np.random.Generator, trials: int) -> tuple[np.ndarray, np.ndarray]:
    scale = np.full((CASES, 1), NOISE)
    scale[:2] *= 5
    return speeds(rng), scale * rng.standard_normal((CASES, trials))


def test_a_case_that_is_fastest_by_luck_is_seldom_picked():
    found = tally(two_noisy_by_far, 3, 150, seed=7)
    # 5.1% and 21% by the estimates alone
    assert np.mean(found.loss) <= 0.035
    assert np.mean(np.array(found.loss) > 0.1) <= 0.13


@drawn(400)
def test_what_drifts_over_the_run_costs_the_pick_little(draws):
    assert np.mean(tally(drifting_machine, 3, draws, 2).loss) <= 0.02


@drawn(400)
def test_of_equal_cases_none_is_said_to_be_beaten(draws):
    found = tally(equal_noise, 3, draws, 3)
    assert np.mean(found.false) <= 0.05
    assert np.mean(found.headline) >= 0.93


@pytest.mark.parametrize("trials", [2, 5])
@pytest.mark.parametrize("draw", [two_noisy_cases, heavy_tails])
@drawn(150)
def test_intervals_hold_under_other_noise(draws, draw, trials):
    assert 0.93 <= np.mean(tally(draw, trials, draws, 4).held) <= 0.97


@drawn(200)
def test_a_pick_that_may_be_noisier_than_the_others_has_an_interval_that_holds(draws):
    found = tally(two_noisy_cases, 2, draws, 4)
    assert np.mean(found.headline) >= 0.9
    assert np.mean(found.together) >= 0.9


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize("trials", [2, 3, 5, 10])
@pytest.mark.parametrize("draw", [equal_noise, normal, two_noisy_cases, heavy_tails])
def test_every_interval_holds_over_many_runs(draw, trials):
    found = tally(draw, trials, 1000, 5)
    assert 0.93 <= np.mean(found.held) <= 0.97
    assert np.mean(found.false) <= 0.05
    assert np.mean(found.headline) >= 0.93
    # of two trials a case five times noisier than the others does not always show: 92.6%
    assert np.mean(found.together) >= (0.93 if draw is not two_noisy_cases or trials > 2 else 0.92)


# -- the parts


def test_what_all_cases_of_a_round_share_is_not_in_the_intervals():
    first, second = {0: 100.0, 1: 200.0, 2: 50.0}, {0: 110.0, 1: 221.0, 2: 54.9}
    ratio = intervals([second, first])[0].ratio(intervals([second, first])[1])
    assert ratio.value == pytest.approx((1.1 * 1.105 * 1.098) ** (1 / 3))
    assert ratio.half_log_width < 0.02


def test_trials_that_resemble_the_one_before_have_wider_intervals():
    held, told = coverage(18, 5, 0.5, 60)
    # 73% of the intervals that take them for independent
    assert held >= 0.89
    assert told >= 0.75


@drawn(100)
def test_independent_trials_seldom_look_as_if_they_resembled_one_another(draws):
    held, told = coverage(18, 5, 0.0, draws)
    assert told <= 0.2
    assert held >= 0.93


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize(
    ("cases", "rounds", "rho", "least"),
    [(18, 3, 0.0, 0.94), (18, 10, 0.0, 0.94), (8, 5, 0.0, 0.93), (18, 3, 0.5, 0.84), (18, 10, 0.5, 0.92)],
)
def test_intervals_hold_whatever_lasts(cases, rounds, rho, least):
    assert coverage(cases, rounds, rho, 200)[0] >= least


def test_a_run_whose_trials_resemble_one_another_says_so():
    logs = lasting(6, 8, 0.9, np.random.default_rng(1))
    of = [case(f"case{i}") for i in range(6)]
    told = [
        replace(measured(each, round_=number), values={"tokens_per_s": float(1000 * np.exp(log))})
        for each, row in zip(of, logs, strict=True)
        for number, log in enumerate(row)
    ]
    said = " ".join(key_findings(RunAnalysis(info(*of), told)))
    assert "Consecutive trials of a case are correlated (autocorrelation 0." in said


@pytest.mark.parametrize(("cases", "rounds"), [(8, 100), (18, 80), (37, 40)])
def test_a_run_of_many_rounds_has_the_numbers_of_a_short_one(cases, rounds):
    rng = np.random.default_rng(17)
    for _ in range(3):
        logs = 0.03 * rng.standard_normal((cases, rounds))
        fit = fit_blocks([dict(enumerate(map(float, row))) for row in np.exp(logs)])
        # a complete design: the effect of a case is its mean
        assert fit.logs == pytest.approx(logs.mean(axis=1), abs=1e-9)
        assert fit.errors == pytest.approx(0.03 / math.sqrt(rounds), rel=0.35)


def test_a_trial_that_is_missing_does_not_give_a_case_an_easier_round():
    slow_second = [{0: 100.0, 1: 50.0}, {0: 101.0, 1: 50.0}, {0: 100.0, 1: 51.0}, {0: 100.0}]
    values = [found.value for found in intervals(slow_second)]
    assert values[3] == pytest.approx(values[0], rel=0.02)


def test_the_noise_of_a_run_is_not_moved_by_one_disturbed_trial():
    rng = np.random.default_rng(8)
    samples = [dict(enumerate(map(float, 1000 * np.exp(0.02 * rng.normal(size=3))))) for _ in range(9)]
    clean = intervals(samples)
    samples[0][1] = 5000.0
    disturbed = intervals(samples)
    assert outlier_rounds(samples) == [[1], *[[]] * 8]
    assert disturbed[4].half_log_width < 2 * clean[4].half_log_width
    assert disturbed[0].value == pytest.approx(clean[0].value, rel=0.05)


def test_a_case_that_is_noisier_than_the_run_has_a_wider_interval():
    steady = [{i: 1000.0 + (i * k) % 7 for i in range(5)} for k in range(1, 6)]
    noisy = {i: float(800 + 100 * i) for i in (3, 0, 4, 1, 2)}
    assert intervals([*steady, noisy])[-1].half_log_width > 5 * intervals(steady)[0].half_log_width


def test_cases_that_agree_to_the_last_digit_have_no_noise():
    same = [{0: 5.0, 1: 5.0}, {0: 7.0, 1: 7.0}]
    assert [(found.value, found.half_log_width) for found in intervals(same)] == [(5.0, 0.0), (7.0, 0.0)]
    assert noise_of(same).scale == 0.0


def test_without_a_second_trial_no_spread_is_known():
    (found,) = intervals([{0: 1000.0}])
    assert (found.value, found.half_log_width, found.low, found.high) == (1000, None, 1000, 1000)
    assert noise_of([{0: 1.0}]) is None


@pytest.mark.parametrize("bad", [[{}], [{0: 0.0}], [{0: 1.0}, {0: -1.0, 1: 2.0}]])
def test_what_has_no_logarithm_is_refused(bad):
    with pytest.raises(ValueError, match="above 0"):
        intervals(bad)


@pytest.mark.parametrize(("count", "freedom"), [(2, 4), (5, 2.5), (18, 34), (40, 6)])
def test_the_range_has_its_textbook_quantile(count, freedom):
    known = stats.studentized_range.ppf(0.95, count, freedom) / math.sqrt(2)
    assert studentized_range_quantile(0.95, count, freedom) == pytest.approx(known, rel=0.005)


def test_more_trials_are_asked_for_as_long_as_a_tie_could_hide_a_better_case():
    wide = [ConfidenceInterval(value, 0.08, 30.0, 3, 0.1) for value in (1.0, 1.02)]
    tied = select_case([candidate(i, each) for i, each in enumerate(wide)], Requirements())
    assert len(tied.tied) == 2
    assert tied.trials_to_settle > 10
    narrow = [replace(each, half_log_width=0.002, simultaneous_half_log_width=0.003) for each in wide]
    assert (
        select_case([candidate(i, each) for i, each in enumerate(narrow)], Requirements()).trials_to_settle
        == 0
    )
