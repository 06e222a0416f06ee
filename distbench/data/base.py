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


@dataclass(frozen=True)
class Merit:
    """The figure of merit of a source's held-out rows: ``(mean loss - floor) * scale``, or accuracy."""

    name: str
    unit: str
    better: Literal["higher", "lower"]
    doc: str
    of: Literal["loss", "accuracy"] = "loss"
    """loss: the mean cross-entropy of a label, in nats. accuracy: the share of labels guessed right."""
    scale: float = 1.0
    floor: float = 0.0
    """The least loss that any model can have on this source, in nats, where that is known."""


@dataclass(frozen=True)
class Split:
    """A source in two parts."""

    training: Batches
    """As ``open`` gives them, of rows that are not held out."""
    held_out: dict[str, np.ndarray]
    """The rows to judge by, whatever the seed; every array has the rows as its first axis."""


class Source(ABC):
    """Where the rows come from."""

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """What its rows are."""

    @property
    def is_of_python(self) -> bool:
        """Whether its rows come with Python and differ between versions of it."""
        return False

    @abstractmethod
    def problem(self, shape: Shape) -> str | None:
        """Why this source can't feed *shape* (file missing, ...), or None; asked without torch, and quick."""

    @abstractmethod
    def open(self, shape: Shape, seed: int, batch_size: int) -> Batches:
        """Function that gives row *i* of the global batch of *batch_size* at a step."""

    def merit(self, shape: Shape) -> Merit | None:
        """How held-out rows are judged, or None if the source keeps none."""
        return None

    def split(self, shape: Shape, seed: int, batch_size: int, held_out: int) -> Split:
        """Batches for training, and *held_out* rows (or all there are) that never appear in one.

        Called of sources that have a ``merit`` only.
        """
        raise NotImplementedError(f"{type(self).__name__} has a merit but no held-out rows")


PLUGIN_BASE = Source
