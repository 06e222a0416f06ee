"""Exact chances of counts, and chances adjusted for their number."""

import pytest
from scipy import stats

from distbench.analysis.statistics.distributions import (
    fisher_exact_tail,
    holm_adjusted,
    poisson_binomial_tail,
)


@pytest.mark.parametrize(
    ("bad", "trials", "others_bad", "others"),
    [(4, 14, 0, 10), (7, 21, 2, 20), (0, 5, 0, 5), (3, 3, 3, 3), (1, 3, 0, 6), (0, 3, 2, 6)],
)
def test_the_exact_test_is_fishers(bad, trials, others_bad, others):
    table = [[bad, trials - bad], [others_bad, others - others_bad]]
    known = stats.fisher_exact(table, alternative="greater").pvalue
    assert fisher_exact_tail(bad, trials, others_bad, others) == pytest.approx(known)


@pytest.mark.parametrize(
    ("count", "trials", "chance"), [(9, 10, 0.125), (0, 4, 0.5), (3, 3, 0.5), (2, 7, 1 / 3)]
)
def test_of_equal_chances_the_tail_is_the_binomial_one(count, trials, chance):
    known = stats.binom.sf(count - 1, trials, chance)
    assert poisson_binomial_tail(count, [chance] * trials) == pytest.approx(known)


def test_events_may_have_chances_of_their_own():
    assert poisson_binomial_tail(1, [0.5, 0.2]) == pytest.approx(1 - 0.5 * 0.8)
    assert poisson_binomial_tail(2, [0.5, 0.2]) == pytest.approx(0.1)
    assert poisson_binomial_tail(3, [0.5, 0.2]) == 0


def test_chances_are_adjusted_for_those_that_are_left_and_keep_their_order():
    assert holm_adjusted([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm_adjusted([0.9, 0.6]) == [1.0, 1.0]
    assert holm_adjusted([0.02]) == [0.02]
    assert holm_adjusted([]) == []
