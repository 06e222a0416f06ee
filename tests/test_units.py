"""Numbers for people."""

from __future__ import annotations

import pytest

from distbench.errors import did_you_mean
from distbench.units import bytes_text, duration_text, number_text, value_text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (50 * 2**20, "50.0 MiB"), (141 * 2**30, "141 GiB")],
)
def test_bytes_have_a_binary_prefix_and_three_digits(value: float, text: str) -> None:
    assert bytes_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "12.3 ms"), (4.25, "4.25 s"), (59.99, "60 s"), (245, "4 min 05 s"), (7800, "2 h 10 min")],
)
def test_durations_are_said_as_people_say_them(value: float, text: str) -> None:
    assert duration_text(value) == text


def test_numbers_have_their_thousands_separated_and_no_digits_that_mean_nothing() -> None:
    assert [number_text(v) for v in (1234567.8, 0.12345, 12.5)] == ["1,234,568", "0.123", "12.5"]


def test_a_value_that_is_not_known_is_a_dash_and_never_a_zero() -> None:
    assert value_text(None, "B") == "–"


def test_a_near_name_is_proposed_and_all_are_listed() -> None:
    assert did_you_mean("ddpp", ["ddp", "fsdp"]) == "did you mean 'ddp'? Allowed: ddp, fsdp"
