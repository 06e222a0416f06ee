"""Data sheets of GPUs agree with the types that plans know, and with what is physically possible."""

import pytest

from distbench.core.units import parse_bandwidth
from distbench.system.gpu_data_sheets import DATA_SHEETS
from distbench.system.gpu_types import GPU_TYPES


def test_every_type_has_a_data_sheet():
    assert list(DATA_SHEETS) == list(GPU_TYPES)


@pytest.mark.parametrize("name", DATA_SHEETS)
def test_rates_are_in_the_right_units(name):
    sheet = DATA_SHEETS[name]
    assert sheet.source
    assert 60e12 < sheet.peak.fp16 < 3e15
    # float8 doubles the rate of 16 bits wherever it exists
    assert sheet.peak.float8 is None or sheet.peak.float8 / sheet.peak.fp16 == pytest.approx(2, rel=0.03)
    assert 300e9 <= sheet.memory_bandwidth <= 8e12
    assert 16e9 <= sheet.pcie <= 128e9
    # one direction
    assert sheet.links is None or 100e9 <= sheet.links <= 900e9
    assert sheet.network is None or 6e9 < sheet.network <= 100e9
    assert sheet.achieved_share is None or 0.5 < sheet.achieved_share < 0.9
    assert sheet.float8_achieved_share is None or 0.5 < sheet.float8_achieved_share < 0.9


def test_unknown_links_are_absent():
    # which of the links of a module two devices have depends on the devices
    assert DATA_SHEETS["mi250x"].inside is None
    assert DATA_SHEETS["mi300x"].network is None
    # cards without more than bridges between pairs
    assert DATA_SHEETS["h100-pcie"].inside == DATA_SHEETS["h100-pcie"].pcie


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("450GB/s", 450e9),
        ("450 GB/s", 450e9),
        ("400Gb/s", 50e9),
        ("400Gbit/s", 50e9),
        ("400Gbps", 50e9),
        ("1.8TB/s", 1.8e12),
        (" 800Mb/s ", 1e8),
    ],
)
def test_a_bandwidth_is_in_bytes_or_in_bits(text, value):
    assert parse_bandwidth(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["", "450", "450GB", "450 gb/s", "0GB/s", "-1GB/s", "400GiB/s", "fast", "4,5GB/s"]
)
def test_what_is_no_bandwidth_is_refused(text):
    with pytest.raises(ValueError, match="expected a bandwidth in one direction, such as 450GB/s"):
        parse_bandwidth(text)
