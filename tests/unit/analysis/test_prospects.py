"""Which cases of a grid are worth a measurement."""

import pytest

from distbench.analysis.prospects import CASES_PER_ROUND, TuningCase, promising_cases, unsettled_cases
from distbench.core.measurement import MeasureConfig
from distbench.prediction import PredictedValue
from support.records import case


def prospect(label: str, predicted: float | None, measured: float | None = None, **changes) -> TuningCase:
    """Case predicted to reach so many tokens/s, give or take a quarter."""
    is_bound, trials = changes.pop("is_bound", False), changes.pop("trials", int(measured is not None))
    quiet = changes.pop("quiet", trials)
    value = None if predicted is None else PredictedValue(predicted, predicted / 1.25, predicted * 1.25)
    return TuningCase(case(label, **changes), value, is_bound, measured, trials, quiet)


def names(prospects: list[TuningCase]) -> list[str]:
    return [one.label for one in promising_cases(prospects)]


def test_the_most_promising_cases_come_first():
    grid = [prospect(f"case{number}", 100.0 + number) for number in range(6)]
    assert names(grid) == ["case5", "case4", "case3"]
    assert len(names(grid)) == CASES_PER_ROUND


def test_only_those_that_may_still_be_the_fastest_are_left():
    grid = [prospect("slow", 60.0), prospect("close", 90.0), prospect("best", 100.0, 100.0)]
    assert names(grid) == ["close"]
    assert names([grid[0], grid[2]]) == []


def test_the_error_that_the_cases_share_is_taken_from_the_measured_ones():
    # all run at half the predicted speed: what is predicted at 90 may reach 45, or 56 at best
    grid = [prospect("close", 90.0), prospect("slow", 75.0), prospect("best", 100.0, 50.0)]
    assert names(grid) == ["close"]
    # all run at twice the predicted speed
    grid = [prospect("close", 90.0), prospect("slow", 75.0), prospect("best", 100.0, 200.0)]
    assert names(grid) == ["close"]


def test_what_nothing_is_predicted_of_is_measured():
    grid = [prospect("unknown", None), prospect("best", 100.0, 100.0), prospect("slow", 50.0)]
    assert names(grid) == ["unknown"]
    assert names([prospect("failed", None, trials=1), prospect("best", 100.0, 100.0)]) == []


def test_many_small_residuals_narrow_what_a_case_may_reach():
    measured = [prospect(f"m{n}", 100.0 - n, (100.0 - n) * (1 + n / 1000)) for n in range(5)]
    assert names([*measured, prospect("close", 85.0)]) == []
    assert names([*measured[:1], prospect("close", 85.0)]) == ["close"]


def test_a_bound_corrects_no_other_case():
    # without its copies an offloading case would be as fast as predicted; with them it is not
    grid = [
        prospect("offload", 100.0, 30.0, is_bound=True),
        prospect("best", 100.0, 100.0),
        prospect("close", 90.0),
    ]
    assert names(grid) == ["close"]


@pytest.mark.parametrize("other", [{"world_size": 4}, {"seed": 7}])
def test_cases_of_other_work_do_not_compete(other):
    grid = [prospect("best", 100.0, 100.0), prospect("elsewhere", 10.0, **other)]
    assert names(grid) == ["elsewhere"]


def test_cases_close_to_the_fastest_get_the_trials_of_the_suite():
    measure = MeasureConfig(trials=3, repeat_noisy=2)
    grid = [
        prospect("best", 100.0, 100.0, trials=2),
        prospect("close", 100.0, 92.0),
        prospect("behind", 100.0, 88.0),
        prospect("settled", 100.0, 99.0, trials=3),
        prospect("noisy", 100.0, 99.0, trials=4, quiet=1),
        prospect("given up", 100.0, 99.0, trials=5, quiet=1),
        prospect("failed", 100.0, trials=1),
        # far behind, but nobody knows why
        prospect("slow", 100.0, 50.0, trials=2, quiet=0),
        prospect("slow for good", 100.0, 50.0, trials=3, quiet=0),
    ]
    assert [one.label for one in unsettled_cases(grid, measure)] == ["best", "close", "noisy", "slow"]
