"""Ranges of numbers and lengths, stated at the field that they bound: ``steps: Annotated[int, Bound(1)]``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True)
class Bound:
    """The range of a number."""

    low: float
    high: float = 2**31 - 1
    open_low: bool = False
    """Whether *low* itself is out of range."""
    open_high: bool = False

    def problem(self, value: float) -> str | None:
        """What is wrong with *value*, or None; NaN is in no range."""
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
    """How long a text may be."""

    characters: int

    def problem(self, value: str) -> str | None:
        """What is wrong with *value*, or None."""
        return f"must have at most {self.characters:,} characters" if len(value) > self.characters else None


Name = Annotated[str, MaxLength(1 << 16)]
"""A text that names something, which may stand in thousands of places of a page."""
Count = Annotated[int, Bound(1)]
"""A number of things, of which there is at least one."""
Positive = Annotated[float, Bound(0, open_low=True)]
"""A number above 0."""
Fraction = Annotated[float, Bound(0, 1, open_high=True)]
"""A number from 0 to below 1."""
