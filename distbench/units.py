"""Numbers for people: sensible digits, units, durations."""

from __future__ import annotations

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_text(value: float) -> str:
    """Return *value* bytes with a binary prefix and three digits: ``1.50 MiB``."""
    power = 0
    while abs(value) >= 1024 and power < len(_BINARY) - 1:
        value /= 1024
        power += 1
    digits = 0 if power == 0 or abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f} {_BINARY[power]}"


def number_text(value: float) -> str:
    """Return a plain number with thousands separated and three to four digits."""
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def duration_text(seconds: float) -> str:
    """Return a duration as people say it: ``85 ms``, ``12.3 s``, ``4 min 05 s``, ``2 h 10 min``."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def value_text(value: float | None, unit: str) -> str:
    """Return *value* in *unit* (``B``, ``s`` or any other word) for a table cell."""
    if value is None:
        return "–"
    if unit == "B":
        return bytes_text(value)
    if unit == "s":
        return duration_text(value)
    return f"{number_text(value)} {unit}".rstrip()
