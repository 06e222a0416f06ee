"""A part of a suite with a value of each kind that is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from distbench.core.bounds import Bound
from distbench.core.case import PluginChoice


@dataclass(frozen=True)
class Part:
    word: Literal["a", "b"]
    pair: tuple[float, float] = (1.0, 2.0)
    maybe: float | None = None
    many: list[PluginChoice] = field(default_factory=list)
    bounded: Annotated[int | None, Bound(1)] = 1
