"""Steps are found where there are some, and neither noise nor drift is taken for one."""

import numpy as np
import pytest
from scipy import stats

from distbench.analysis.statistics.change_points import FALSE_ALARM_RATE, find_shifts, fit_trend, shift_at
from support.launch_noise import NOISY, QUIET, TYPICAL, Noise, launches
from support.random_histories import LEAST, heavy_tails, outliers, share_called
from support.simulations import drawn

SEED = 20260101
PERSISTENCE = 0.8
SESSION = {QUIET: 0.01, TYPICAL: 0.02, NOISY: 0.04}
"""Deviation of the logarithm from one occasion to another, as the reference has it for each level."""


def points(noise: Noise, histories: int, days: int, rng: np.random.Generator, *, drifts: bool) -> np.ndarray:
    """Return throughputs: a day is the median over five launches, and offset as a whole.

    The offsets of days are independent, or a first-order autoregression of the same deviation.
    """
    launched = launches(noise, (histories * days, 5), rng).mean(axis=-1)
    own = np.log(np.median(launched, axis=-1)).reshape(histories, days)
    return np.exp(-own - _offsets(histories, days, SESSION[noise], PERSISTENCE if drifts else 0.0, rng))


def _offsets(histories: int, days: int, scale: float, keep: float, rng: np.random.Generator) -> np.ndarray:
    news = rng.normal(0, scale, (days, histories))
    found = [news[0]]
    for day in news[1:]:
        found.append(keep * found[-1] + np.sqrt(1 - keep**2) * day)
    return np.array(found).T


def detection_rate(histories: np.ndarray, place: int, within: int) -> float:
    """Return the part of *histories* whose step is told when so many points have followed it, or earlier."""
    looks = range(place + 3, place + within + 1)
    return float(np.mean([any(detects(values[:end], place) for end in looks) for values in histories]))


def detects(values: np.ndarray, place: int) -> bool:
    return any(abs(step.place - place) <= 2 for step in find_shifts(list(values), LEAST))


@pytest.mark.parametrize("noise", [QUIET, TYPICAL, NOISY], ids=["quiet", "typical", "noisy"])
@drawn(200)
def test_noise_alone_is_no_step(draws, noise):
    rng = np.random.default_rng(SEED)
    assert share_called(points(noise, draws, 100, rng, drifts=False)) <= 0.01


@pytest.mark.parametrize("noise", [QUIET, TYPICAL, NOISY], ids=["quiet", "typical", "noisy"])
@drawn(200)
def test_drift_alone_is_no_step(draws, noise):
    rng = np.random.default_rng(SEED)
    assert share_called(points(noise, draws, 100, rng, drifts=True)) <= 0.05


def random_walk(rng: np.random.Generator) -> np.ndarray:
    return np.exp(np.cumsum(rng.normal(0, 0.01, (400, 100)), axis=1) + rng.normal(0, 0.01, (400, 100)))


def declining_points(rng: np.random.Generator) -> np.ndarray:
    """Return histories that lose a tenth evenly."""
    return np.exp(rng.normal(0, 0.024, (400, 100)) + np.linspace(0, np.log(0.9), 100))


@pytest.mark.parametrize("made", [outliers, heavy_tails, random_walk, declining_points])
@drawn(400)
def test_what_is_not_a_change_of_level_is_no_step(draws, made):
    # of 2,000 each, 0.3 to 1.0%
    called = draws * share_called(made(np.random.default_rng(SEED))[:draws])
    assert called <= stats.binom.ppf(0.975, draws, 0.01)


@drawn(150)
def test_a_decline_hidden_in_noise_is_no_step(draws):
    """Over 200 points: the mixtures alone take every third of these for a step between their halves."""
    rng = np.random.default_rng(SEED)
    histories = np.exp(rng.normal(0, 0.05, (draws, 200)) + np.linspace(0, np.log(0.9), 200))
    assert share_called(histories) <= 0.03


def test_a_step_among_outliers_is_found_as_it_is_without():
    histories = outliers(np.random.default_rng(SEED))[:60]
    histories[:, 60:] /= 1.1
    assert np.mean([detects(values, 60) for values in histories]) >= 0.9


def test_a_step_of_three_points_is_told_from_as_many_outliers_in_a_row():
    rng = np.random.default_rng(SEED)
    values = np.exp(rng.normal(0, 0.01, 60))
    values[57:] *= 0.8
    assert detects(values, 57)
    values[[5, 17, 25, 33, 48]] *= 0.8
    assert not detects(values, 57), "one day in twelve is as bad, so three in a row may be, too"


def test_drift_is_what_least_squares_alone_take_for_a_step():
    """The histories above are a trap: a t test at the best split, p = 1e-3, falls into it."""
    rng = np.random.default_rng(SEED)
    logs = np.log(points(TYPICAL, 200, 100, rng, drifts=True))
    chances = [stats.ttest_ind(logs[:, :k], logs[:, k:], axis=1).pvalue for k in range(3, 98)]
    assert np.mean(np.min(chances, axis=0) <= 1e-3) >= 0.5


def trend_rate(histories: np.ndarray) -> float:
    found = [fit_trend(list(values)) for values in histories]
    return float(np.mean([step is not None and step.chance <= FALSE_ALARM_RATE for step in found]))


@pytest.mark.parametrize("drifts", [False, True])
def test_neither_noise_nor_drift_is_a_trend(drifts):
    rng = np.random.default_rng(SEED)
    assert trend_rate(points(TYPICAL, 100, 40, rng, drifts=drifts)) <= 0.01


def test_ten_changes_of_two_percent_are_a_trend_although_none_is_a_step():
    rng = np.random.default_rng(SEED)
    creeping = points(QUIET, 60, 33, rng, drifts=False) * 0.98 ** (np.arange(33) // 3)
    assert share_called(creeping) <= 0.1
    assert trend_rate(creeping) >= 0.9
    ends = [(step.before, step.after) for values in creeping if (step := fit_trend(list(values)))]
    before, after = np.median(ends, axis=0)
    assert after / before == pytest.approx(0.98**10, abs=0.03)


def test_a_trend_takes_as_many_points_as_a_step_and_none_is_seen_in_what_does_not_change():
    assert fit_trend([1.0, 0.9, 0.8, 0.7, 0.6]) is None
    assert fit_trend([7.5] * 9).chance == pytest.approx(1.0)
    counted = fit_trend([float(value) for value in range(10)])
    assert (counted.before, counted.after) == (pytest.approx(0), pytest.approx(9))
    assert counted.chance < 1e-6


def test_a_bad_last_day_is_no_trend():
    values = 1000 * np.exp(np.random.default_rng(SEED).normal(0, 0.01, 30))
    values[-1] *= 0.7
    step = fit_trend(list(values))
    assert step.chance > 0.05
    assert step.after / step.before == pytest.approx(1, abs=0.02)


@drawn(200)
def test_a_lasting_step_of_a_tenth_is_told_within_five_points(draws):
    rng = np.random.default_rng(SEED)
    histories = points(TYPICAL, draws, 65, rng, drifts=False)
    histories[:, 60:] /= 1.1
    assert detection_rate(histories, 60, 5) >= 0.9


def test_a_spell_that_came_and_went_is_two_steps():
    rng = np.random.default_rng(SEED)
    values = 1000 * np.exp(rng.normal(0, 0.01, 60))
    # of one split, in its middle or at an end, nothing could be told
    values[27:33] *= 0.9
    found = find_shifts(list(values), LEAST)
    assert [step.place for step in found] == [27, 33]
    assert [step.effect for step in found] == pytest.approx([-0.1, 0.11], abs=0.02)


def test_a_step_smaller_than_asked_for_is_not_told():
    values = [100.0, 100.1, 99.9] * 6 + [98.0, 98.1, 97.9] * 6
    assert [step.place for step in find_shifts(values, 0.01)] == [18]
    assert find_shifts(values, 0.03) == []


@pytest.mark.parametrize(("after", "told"), [(2, []), (3, [6])])
def test_it_takes_three_points_on_each_side(after, told):
    assert [step.place for step in find_shifts([5.0] * 6 + [6.0] * after, LEAST)] == told


@pytest.mark.parametrize(
    ("before", "now", "effect"),
    [
        (5e6, 6e6, 0.2),
        (0.0, 6.0, float("inf")),
        (-1.0, -3.0, -2.0),
        (1e-320, 1e308, float("inf")),
        (6.0, 0.0, -1.0),
    ],
)
def test_numbers_without_any_spread_have_certain_steps(before, now, effect):
    (step,) = find_shifts([before] * 5 + [now] * 5, LEAST)
    assert (step.place, step.before, step.after) == (5, before, now)
    assert step.effect == pytest.approx(effect)
    assert step.chance < 1e-10


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [0.0] * 20, [7.5] * 20, [-1e308, 1e308] * 10])
def test_series_without_a_step_have_none(values):
    assert find_shifts(values, LEAST) == []


def test_a_number_that_is_none_is_refused():
    with pytest.raises(ValueError, match="not a finite number"):
        find_shifts([1.0] * 9 + [float("nan")] * 3, LEAST)


def test_another_unit_or_order_of_time_changes_nothing_but_the_sign():
    rng = np.random.default_rng(SEED)
    values = np.exp(rng.normal(0, 0.02, 40))
    values[25:] *= 1.2
    (plain,) = find_shifts(list(values), LEAST)
    (scaled,) = find_shifts(list(values * 1e9), LEAST)
    (reverse,) = find_shifts(list(values[::-1]), LEAST)
    assert (scaled.place, reverse.place) == (plain.place, 40 - plain.place)
    assert scaled.chance == pytest.approx(plain.chance, rel=1e-6)
    assert reverse.chance == pytest.approx(plain.chance, rel=1e-6)


def test_at_a_known_place_no_search_is_paid_for():
    values = [100.0, 101.0, 99.0] * 6 + [90.0, 91.0, 89.0]
    (searched,) = find_shifts(values, LEAST)
    known = shift_at(values, 18)
    assert known is not None
    assert (known.place, known.before, known.after) == (searched.place, searched.before, searched.after)
    assert known.chance == pytest.approx(searched.chance / (len(values) - 5))
    assert shift_at(values, 19) is None
