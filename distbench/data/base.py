"""The seam of data sources: rows that depend on the seed, the step and the row alone.

No rank and no world size appears here, so every strategy and every world size sees the same
global batches; a rank asks for its own rows only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["tokens", "features"]

Batches = Callable[[int, range], "dict[str, np.ndarray]"]
"""``batches(step, rows)`` -> arrays whose first axis is ``len(rows)``."""


@dataclass(frozen=True)
class Shape:
    """What a workload wants of its data."""

    kind: Kind
    """``tokens``: ``input_ids`` and ``labels`` (rows, length), int64, labels shifted by one.
    ``features``: ``features`` (rows, length), float32, and ``labels`` (rows,), int64."""
    length: int
    """Tokens, or features, a row."""
    classes: int
    """Vocabulary size, or number of classes."""


class Source(ABC):
    """Where the rows come from."""

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """What its rows are."""

    @abstractmethod
    def problem(self, shape: Shape) -> str | None:
        """Return why this source can't feed *shape* (file missing, vocabulary too small), or None.

        Runs in the parent before launch: without torch, and quick.
        """

    @abstractmethod
    def open(self, shape: Shape, seed: int, batch_size: int) -> Batches:
        """Return the function that gives row *i* of the global batch of *batch_size* at a step."""


PLUGIN_BASE = Source
