"""Numbers for people: sensible digits, units, durations."""

import math
import re
from collections.abc import Sequence

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")
_BANDWIDTH_PREFIXES = {"M": 1e6, "G": 1e9, "T": 1e12}
_BANDWIDTH = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([MGT])(B|b|bit)(?:/s|ps)")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)")


def format_bytes(value: float) -> str:
    """*value* bytes with a binary prefix and three digits: ``1.50 MiB``."""
    power = 0
    # as rounded, so that no text says 1024
    while abs(value) >= 1023.5 and power < len(_BINARY) - 1:
        value /= 1024
        power += 1
    digits = 0 if power == 0 or abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f} {_BINARY[power]}"


def parse_bytes(text: str) -> float:
    """Number of bytes in *text*: ``24GiB`` (powers of 1024) or ``24 GB`` (powers of 1000).

    Raises:
        ValueError: not a positive number with one of these units.
    """
    match = _SIZE.fullmatch(text.strip())
    scales = {unit.lower(): 1024.0**power for power, unit in enumerate(_BINARY)}
    scales |= {unit.lower(): 1000.0**power for power, unit in enumerate(_DECIMAL)}
    scale = scales.get(match[2].lower()) if match else None
    if match is None or scale is None or not float(match[1]):
        raise ValueError("expected a size with a unit, such as 24GiB or 512MiB")
    return float(match[1]) * scale


def parse_bandwidth(text: str) -> float:
    """Bytes per second in *text*: ``450GB/s``, or ``400Gb/s`` in bits (powers of 1000).

    Raises:
        ValueError: not a positive number with one of these units.
    """
    match = _BANDWIDTH.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise ValueError(
            "expected a bandwidth in one direction, such as 450GB/s or 400Gb/s (B: bytes, b: bits)"
        )
    return float(match[1]) * _BANDWIDTH_PREFIXES[match[2]] / (8 if match[3] in ("b", "bit") else 1)


def parse_fraction(text: str) -> float:
    """Fraction in *text*: ``10%`` or ``0.1``.

    Raises:
        ValueError: not a number from 0 to 1.
    """
    percent = text.strip().endswith("%")
    try:
        value = float(text.strip().removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ValueError("expected a fraction between 0 and 1, such as 10% or 0.1")
    return value


def format_number(value: float, half: float = 0.0) -> str:
    """Format a number with thousands separators, to two digits of *half*, half its interval's width.

    A number below 100 gets at most three digits, a larger one no decimals. If *half* is 0, only this rule
    applies, as the noise is unknown.
    """
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if half > 0:
        places = min(_places(half, 2), 0 if abs(value) >= 100 else _places(value, 3))
        return f"{round(value, places):,.{max(0, places)}f}"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _places(value: float, digits: int) -> int:
    """Number of decimals that show *digits* digits of *value*; below 0 if they end left of the point."""
    return digits - 1 - math.floor(math.log10(abs(value))) if value else 0


def format_percent(fraction: float) -> str:
    """A fraction as a percentage: ``0.4%``, ``9.5%``, ``23%``."""
    return f"{fraction:.0%}" if abs(fraction) >= 0.0995 else f"{fraction:.1%}"


def format_ratio_interval(value: float, low: float, high: float) -> tuple[str, str, str]:
    """Format a ratio and the ends of its interval, to two digits of half the width.

    Half the width determines the significant digits (JCGM 100:2008, 7.2.6). An end is shown as 1.00 only if
    it is 1.
    """
    half = (high - low) / 2
    decimals = 2 if half <= 0 else min(4, max(0, _places(half, 2)))
    while decimals < 9 and any(each != 1 and round(each, decimals) == 1 for each in (low, high)):
        decimals += 1
    return f"{value:.{decimals}f}", f"{low:.{decimals}f}", f"{high:.{decimals}f}"


def format_duration(seconds: float) -> str:
    """A duration for people: ``85 ms``, ``12.3 s``, ``4 min 05 s``, ``2 h 10 min``."""
    if not math.isfinite(seconds):
        return f"{seconds} s"
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    # as rounded, so that no text says 1e+03 ms or 60 s
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


def format_bitrate(bits_per_s: float) -> str:
    """Bit rate of a link: ``198 Mbit/s``, ``92.4 Gbit/s``."""
    # as rounded, so that no text says 1e+03 Mbit/s
    return f"{bits_per_s / 1e9:.3g} Gbit/s" if bits_per_s >= 999.5e6 else f"{bits_per_s / 1e6:.3g} Mbit/s"


def format_gb_per_s(bytes_per_s: float) -> str:
    """Number of a bandwidth in GB/s, below a heading that has the unit: ``11.5``, ``1,800``."""
    value = bytes_per_s / 1e9
    # as rounded, so that no text says 1e+03
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def format_count(count: int, noun: str) -> str:
    """A count with its noun: ``1 pair``, ``5 pairs``, ``2 processes``."""
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


def join_words(words: Sequence[str]) -> str:
    """Words as a list in a sentence: ``a``, ``a and b``, ``a, b and c``."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def nearest_multiples(of: int, number: int) -> str:
    """Multiples of *of* next to *number*, ``28 or 32``; only the larger one if the smaller is 0."""
    below = number // of * of
    return f"{below} or {below + of}" if below else str(of)


MISSING_TEXT = "–"
"""Text of an unknown number."""


def format_value(value: float | None, unit: str, half: float = 0.0) -> str:
    """Format *value* in *unit*: ``B``, ``s``, or any other word (then to the digits that *half* allows)."""
    if value is None:
        return MISSING_TEXT
    if unit == "B":
        return format_bytes(value)
    if unit == "s":
        return format_duration(value)
    return f"{format_number(value, half)} {unit}".rstrip()
