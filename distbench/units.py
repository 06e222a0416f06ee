"""Numbers for people: sensible digits, units, durations."""

from __future__ import annotations

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("", "k", "M", "G", "T", "P")


def bytes_text(value: float) -> str:
    """Return *value* bytes with a binary prefix and three digits: ``1.50 MiB``."""
    return _scaled(value, 1024, _BINARY, separator=" ")


def count_text(value: float) -> str:
    """Return a count with a decimal prefix and three digits: ``13.1M``."""
    return _scaled(value, 1000, _DECIMAL, separator="")


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


def _scaled(value: float, base: int, prefixes: tuple[str, ...], separator: str) -> str:
    power = 0
    while abs(value) >= base and power < len(prefixes) - 1:
        value /= base
        power += 1
    digits = f"{value:.0f}" if power == 0 else _three_digits(value)
    return f"{digits}{separator}{prefixes[power]}".rstrip()


def _three_digits(value: float) -> str:
    return f"{value:.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"
