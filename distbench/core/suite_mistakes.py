"""Mistakes in a suite, by the path of their key."""

from dataclasses import dataclass

KeyPath = tuple[str | int, ...]
"""Keys and indices from the top of a suite to a value."""


@dataclass(frozen=True)
class Problem:
    """A mistake at a path in a suite, not yet traced to a line."""

    path: KeyPath
    message: str
    value: object = None
    combined_fields: tuple[str, ...] = ()
    """Fields of the section that can't be combined, if no single value is wrong."""
