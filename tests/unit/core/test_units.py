"""Numbers for people."""

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as drawn

from distbench.core.errors import did_you_mean
from distbench.core.units import (
    format_bitrate,
    format_bytes,
    format_count,
    format_duration,
    format_gb_per_s,
    format_number,
    format_percent,
    format_ratio_interval,
    format_value,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (50 * 2**20, "50.0 MiB"), (141 * 2**30, "141 GiB")],
)
def test_bytes_have_a_binary_prefix_and_three_digits(value, text):
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "12.3 ms"), (4.25, "4.25 s"), (59.99, "1 min 00 s"), (245, "4 min 05 s"), (7800, "2 h 10 min")],
)
def test_durations_are_said_as_people_say_them(value, text):
    assert format_duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(-1.0, "-1 s"), (-0.9996, "-1 s"), (-0.5, "-500 ms"), (math.inf, "inf s")]
)
def test_a_duration_may_be_negative_or_endless(value, text):
    assert format_duration(value) == text


def test_numbers_have_their_thousands_separated_and_no_digits_that_mean_nothing():
    assert [format_number(v) for v in (1234567.8, 0.12345, 12.5)] == ["1,234,568", "0.123", "12.5"]


@pytest.mark.parametrize(
    ("value", "half", "text"),
    [
        (3_028_481, 150_000, "3,030,000"),
        (2_867_739, 150_000, "2,870,000"),
        (19_674, 1_100, "19,700"),
        (19_674, 335, "19,670"),
        (19_674, 0.2, "19,674"),
        (50.0, 1.3, "50.0"),
        (48.31, 1.3, "48.3"),
        (48.31, 13, "48"),
        (0.012345, 0.001, "0.0123"),
        (0.012345, 0.004, "0.0123"),
        (0.012345, 0.04, "0.012"),
        (7.0, 300, "10"),
        (0.0, 2.0, "0"),
    ],
)
def test_a_number_with_an_interval_has_two_digits_of_half_its_width(value, half, text):
    assert format_number(value, half) == text


@pytest.mark.parametrize(
    ("ratio", "texts"),
    [
        ((1.41, 1.20, 1.65), ("1.41", "1.20", "1.65")),
        ((1.0045, 1.0012, 1.0078), ("1.0045", "1.0012", "1.0078")),
        ((1.02, 1.004, 1.60), ("1.020", "1.004", "1.600")),
        ((41.53, 10.2, 170.0), ("42", "10", "170")),
        ((1.5, 1.5, 1.5), ("1.50", "1.50", "1.50")),
    ],
)
def test_a_ratio_has_the_digits_that_its_interval_allows_and_no_end_that_rounds_to_1(ratio, texts):
    assert format_ratio_interval(*ratio) == texts


@pytest.mark.parametrize(
    ("fraction", "text"), [(0.004, "0.4%"), (0.0994, "9.9%"), (0.0996, "10%"), (0.33, "33%")]
)
def test_a_small_percentage_has_a_digit_more(fraction, text):
    assert format_percent(fraction) == text


def test_a_value_that_is_not_known_is_a_dash_and_never_a_zero():
    assert format_value(None, "B") == "–"


def test_a_near_name_is_proposed_and_all_are_listed():
    assert did_you_mean("ddpp", ["ddp", "fsdp"]) == "did you mean 'ddp'? Allowed: ddp, fsdp"


@given(drawn.floats(1, 2**49))
@example(1023.6 * 1024)
@example(1023.999 * 2**30)
@example(99.96 * 2**20)
def test_bytes_have_at_most_four_digits_of_a_unit_and_are_right_to_half_a_percent(value):
    number, unit = format_bytes(value).split()
    assert re.fullmatch(r"\d{1,4}|\d{2}\.\d|\d\.\d\d", number)
    assert float(number) < 1024
    power = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].index(unit)
    # below a thousand bytes they are whole
    assert float(number) * 1024**power == pytest.approx(value, rel=0.0051, abs=0.5)


@given(drawn.floats(1e-6, 1e6))
@example(0.9996)
@example(59.96)
@example(60.5)
@example(3599.6)
@example(3659.0)
def test_a_duration_is_right_to_half_its_last_place_and_in_no_unit_too_small(seconds):
    text = format_duration(seconds)
    assert "e+" not in text and not text.startswith(("1000 ms", "60 s", "60 min"))
    units = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3}
    told = math.fsum(float(number) * units[unit] for number, unit in re.findall(r"([\d.e-]+) (\w+)", text))
    # three digits of seconds, whole seconds of minutes, and whole minutes of hours
    half = 0.0051 * seconds if seconds < 59.95 else 0.5 if seconds < 3599.5 else 30.0
    assert told == pytest.approx(seconds, abs=half + 1e-9)


@pytest.mark.parametrize(
    ("bits", "text"), [(198e6, "198 Mbit/s"), (999.6e6, "1 Gbit/s"), (999.4e6, "999 Mbit/s")]
)
def test_the_speed_of_a_link_is_in_no_unit_too_small(bits, text):
    assert format_bitrate(bits) == text


@pytest.mark.parametrize(
    ("gb_per_s", "text"),
    [(11.46, "11.5"), (999.4, "999"), (999.6, "1,000"), (1800, "1,800"), (0.05, "0.05")],
)
def test_bandwidths_have_no_exponent(gb_per_s, text):
    assert format_gb_per_s(gb_per_s * 1e9) == text


def test_plurals_are_those_of_english():
    assert [format_count(n, "other process") for n in (1, 2)] == ["1 other process", "2 other processes"]
    assert [format_count(n, "device") for n in (0, 1, 1200)] == ["0 devices", "1 device", "1,200 devices"]
