"""Bounds of numbers and texts, declared in the type of a field: ``steps: Annotated[int, Bound(1)]``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True)
class Bound:
    """The range of a number."""

    low: float
    high: float = 2**31 - 1
    open_low: bool = False
    """True if *low* itself is out of range."""
    open_high: bool = False

    def problem(self, value: float) -> str | None:
        """Problem with *value*, or None; NaN is out of every range."""
        if not value >= self.low or (self.open_low and value == self.low):
            return f"must be {'above' if self.open_low else 'at least'} {self.low:g}"
        if value > self.high or (self.open_high and value == self.high):
            return f"must be {'below' if self.open_high else 'at most'} {self.high:.15g}"
        return None

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], dict[str, Any]]) -> Any:
        """JSON Schema of a type with this range; pydantic asks for it by this name."""
        low = "exclusiveMinimum" if self.open_low else "minimum"
        high = "exclusiveMaximum" if self.open_high else "maximum"
        return {**handler(core), low: self.low, high: self.high}


@dataclass(frozen=True)
class MaxLength:
    """Maximum length of a text."""

    characters: int

    def problem(self, value: str) -> str | None:
        """Problem with *value*, or None."""
        return f"must have at most {self.characters:,} characters" if len(value) > self.characters else None


Name = Annotated[str, MaxLength(1 << 16)]
"""A name, which may occur thousands of times on a page."""
Count = Annotated[int, Bound(1)]
"""A count of at least 1."""
Positive = Annotated[float, Bound(0, open_low=True)]
"""A number above 0."""
Fraction = Annotated[float, Bound(0, 1, open_high=True)]
"""A number of at least 0 and below 1."""
