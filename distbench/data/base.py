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

DataKind = Literal["tokens", "masked_tokens", "pairs", "features", "images"]

IGNORE_INDEX = -100
"""A label that torch's cross-entropy leaves out (its default ``ignore_index``)."""

BatchFunction = Callable[[int, range], "dict[str, np.ndarray]"]
"""``batches(step, rows)`` -> arrays whose first axis is ``len(rows)``."""


INPUT_ARRAYS: dict[DataKind, tuple[str, ...]] = {
    "tokens": ("input_ids",),
    "masked_tokens": ("input_ids",),
    "pairs": ("input_ids", "decoder_input_ids"),
    "features": ("features",),
    "images": ("pixel_values",),
}
"""Kind of rows -> arrays of a batch that a model takes, in the order in which it takes them."""


@dataclass(frozen=True)
class DataShape:
    """What a workload wants of its data."""

    kind: DataKind
    """``tokens``: ``input_ids`` and ``labels`` (rows, length), int64, labels shifted by one.
    ``masked_tokens``: the same arrays, of the same tokens. In as many places of every row ``input_ids`` has
    ``mask`` and ``labels`` the token; elsewhere ``labels`` is ``IGNORE_INDEX``.
    ``pairs``: ``input_ids`` (rows, length), and ``decoder_input_ids`` and ``labels`` (rows, target_length),
    int64, labels shifted by one.
    ``features``: ``features`` (rows, length), float32, and ``labels`` (rows,), int64.
    ``images``: ``pixel_values`` (rows, channels, length, length), float32, and ``labels`` (rows,), int64."""
    sample_length: int
    """Tokens, or features, a row; of pairs those of the source; of images the pixels of a side."""
    classes: int
    """Vocabulary size, or number of classes."""
    target_length: int = 0
    """Tokens of the target of a pair."""
    channels: int = 0
    """Channels of an image."""
    mask: int | None = None
    """Id of a masked token; None: the last of the vocabulary, which the data must not have."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Arrays of a batch that a model takes, in that order."""
        return INPUT_ARRAYS[self.kind]

    @property
    def tokens(self) -> int:
        """Tokens of a row, of pairs those of both parts; 1 where a row is no sequence."""
        return self.sample_length + self.target_length if self.takes_ids else 1

    @property
    def takes_ids(self) -> bool:
        """Whether a model takes ids, int64, and not numbers, float32."""
        return self.kind not in ("features", "images")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one row of the first array that a model takes."""
        return (
            (self.channels, self.sample_length, self.sample_length)
            if self.kind == "images"
            else (self.sample_length,)
        )

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Shape of the labels of one row."""
        return (self.target_length or self.sample_length,) if self.takes_ids else ()

    @property
    def mask_id(self) -> int:
        """Id of a masked token."""
        return self.classes - 1 if self.mask is None else self.mask

    @property
    def ids(self) -> int:
        """Ids, counted from 0, that the data may have."""
        has_own = self.kind == "masked_tokens" and self.mask is None
        return self.classes - 1 if has_own else self.classes


@dataclass(frozen=True)
class HeldOutMetric:
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
class TrainHeldOutSplit:
    """A source in two parts."""

    train: BatchFunction
    """As ``open`` gives them, of rows that are not held out."""
    held_out: dict[str, np.ndarray]
    """The rows to judge by, whatever the seed; every array has the rows as its first axis."""


class DataSource(ABC):
    """Where the rows come from."""

    @property
    def depends_on_python_version(self) -> bool:
        """Whether its rows come with Python and differ between versions of it."""
        return False

    @abstractmethod
    def problem(self, shape: DataShape) -> str | None:
        """Why this source can't feed *shape* (file missing, ...), or None; asked without torch, and quick."""

    @abstractmethod
    def open(self, shape: DataShape, seed: int, batch_size: int) -> BatchFunction:
        """Function that gives row *i* of the global batch of *batch_size* at a step."""

    def held_out_metric(self, shape: DataShape) -> HeldOutMetric | None:
        """How held-out rows are judged, or None if the source keeps none."""
        return None

    def split_problem(self, shape: DataShape) -> str | None:
        """Why no rows of *shape* can be held out, or None; asked without torch, where ``problem`` is None."""
        return None

    def split(self, shape: DataShape, seed: int, batch_size: int, held_out: int) -> TrainHeldOutSplit:
        """Batches for training, and *held_out* rows (or all there are) that never appear in one.

        Called of sources that have a ``held_out_metric`` only.
        """
        raise NotImplementedError(f"{type(self).__name__} has a merit but no held-out rows")


PLUGIN_BASE = DataSource
