"""Shapes of the parameters of a model, by layer. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True)
class LayerShapes:
    """Shapes of all parameters of a model, in the order of their first use."""

    before: list[Shape]
    """Those before the layers."""
    layers: list[list[Shape]]
    after: list[Shape]
    """All others."""

    @property
    def outside(self) -> list[Shape]:
        """Those that are in no layer."""
        return [*self.before, *self.after]

    @classmethod
    def in_order(cls, shapes: Iterable[Shape], before: int, layers: Iterable[int]) -> LayerShapes:
        """Divide *shapes*: the first with *before* elements together, then those of each of the *layers*."""
        left = list(shapes)

        def take(elements: int) -> list[Shape]:
            taken = []
            while elements > 0 and left:
                elements -= math.prod(left[0])
                taken.append(left.pop(0))
            return taken

        return cls(take(before), [take(elements) for elements in layers], left)
