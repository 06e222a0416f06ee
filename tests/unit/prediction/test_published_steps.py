"""Predicted steps beside those that others have published: the page, its table, and what it promises."""

import pytest

from foresight import extrapolation
from foresight.errors import Errors, covered, errors, ordered, utilisation_errors
from foresight.page import PAGE, ROWS, better_than_utilisation, by_source, written_page, written_rows
from foresight.published_rows import predictions, read_rows


@pytest.fixture(scope="module")
def rows():
    return read_rows()


@pytest.fixture(scope="module")
def pairs(rows):
    return list(predictions(rows))


def test_the_page_and_its_rows_are_what_is_predicted():
    hint = "run python -m foresight.page in tests/"
    text = PAGE.read_text()
    assert written_page(text) == text, hint
    assert written_rows() == ROWS.read_text(), hint


def test_every_published_step_is_predicted_but_one_that_offloads(rows, pairs):
    assert len({row.name for row in rows}) == len(rows) == 301
    predicted = {row.name for row, _ in pairs}
    assert [row.name for row in rows if row.name not in predicted] == ["deepspeed-003"]


def test_errors_are_as_small_as_promised(rows, pairs):
    found = errors(pairs)
    assert found.median <= 0.10
    assert found.p90 <= 0.22
    assert len(better_than_utilisation(pairs, rows)) >= 6 <= len(by_source(pairs)) == 8
    assert found.median < utilisation_errors(pairs, rows).median


def test_intervals_hold_nine_of_ten(pairs):
    assert covered(pairs) >= 0.9 * len(pairs)


def test_the_faster_of_two_layouts_is_told(pairs):
    right, total = ordered(pairs, same_model=True)
    assert total > 50
    assert right >= 0.9 * total


def test_steps_on_more_gpus_are_closer_than_the_same_speed_of_each(rows):
    pairs = list(extrapolation.pairs(rows))
    assert len(pairs) > 100
    for is_same, least in ((True, 0.02), (False, 0.03)):
        own = [pair for pair in pairs if pair.ratio.is_same_work == is_same]
        found, flat = extrapolation.errors(own), extrapolation.flat_errors(own)
        assert found.median < min(least, flat.median)
        assert found.p90 < flat.p90
        assert extrapolation.covered(own) >= 0.9 * len(own)


def test_an_error_is_relative_to_what_was_measured():
    found = Errors((-0.5, 0.1, 0.2))
    assert (found.bias, found.median, found.p90, found.largest) == (0.1, 0.2, 0.5, 0.5)


def test_terms_add_up_to_the_step(pairs):
    assert pairs
    for row, step in pairs:
        assert sum(step.terms.values()) == pytest.approx(step.seconds.value), row.name
        assert min(step.terms.values()) >= 0, row.name
        assert step.seconds.low * 1.34 <= step.seconds.value * 1.0001, row.name
