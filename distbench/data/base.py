"""Interface of data sources.

A sample depends on the seed, the step and its index alone. No rank and no world size appears here, so every
strategy and every world size gets the same global batches; a rank requests only its own samples.
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
"""Label that torch's cross-entropy ignores (its default ``ignore_index``)."""

POSITION_IDS = "position_ids"
"""Array of packed rows (samples, length): place of each token in its document, from 0."""

BatchFunction = Callable[[int, range], "dict[str, np.ndarray]"]
"""``batches(step, rows)`` -> arrays whose first axis is ``len(rows)``."""


INPUT_ARRAYS: dict[DataKind, tuple[str, ...]] = {
    "tokens": ("input_ids",),
    "masked_tokens": ("input_ids",),
    "pairs": ("input_ids", "decoder_input_ids"),
    "features": ("features",),
    "images": ("pixel_values",),
}
"""Kind of data -> arrays of a batch that a model takes, in the order of its arguments."""


@dataclass(frozen=True)
class DataShape:
    """Shape of the data that a workload takes."""

    kind: DataKind
    """``tokens``: ``input_ids`` and ``labels`` (samples, length), int64, labels shifted by one.
    ``masked_tokens``: the same arrays, of the same tokens. At an equal number of positions of every sample,
    ``input_ids`` has ``mask`` and ``labels`` the token; elsewhere ``labels`` is ``IGNORE_INDEX``.
    ``pairs``: ``input_ids`` (samples, length), and ``decoder_input_ids`` and ``labels`` (samples,
    target_length), int64, labels shifted by one.
    ``features``: ``features`` (samples, length), float32, and ``labels`` (samples,), int64.
    ``images``: ``pixel_values`` (samples, channels, length, length), float32, and ``labels`` (samples,),
    int64."""
    sample_length: int
    """Tokens or features per sample; for pairs, tokens of the source; for images, pixels per side."""
    classes: int
    """Vocabulary size, or number of classes."""
    target_length: int = 0
    """Tokens of the target of a pair."""
    channels: int = 0
    """Number of channels of an image."""
    mask: int | None = None
    """Id of the mask token; None: the last of the vocabulary, which must not occur in the data."""
    takes_any_arrays: bool = False
    """True if a loss function of the user takes the batch, whose arrays may have other names and shapes."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Arrays of a batch that a model takes, in the order of its arguments."""
        return INPUT_ARRAYS[self.kind]

    @property
    def tokens(self) -> int:
        """Tokens per sample, for pairs those of source and target; 1 if a sample is no sequence."""
        return self.sample_length + self.target_length if self.takes_ids else 1

    @property
    def takes_ids(self) -> bool:
        """True if a model takes ids (int64) rather than features or pixels (float32)."""
        return self.kind not in ("features", "images")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample of the first array that a model takes."""
        return (
            (self.channels, self.sample_length, self.sample_length)
            if self.kind == "images"
            else (self.sample_length,)
        )

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Shape of the labels of one sample."""
        return (self.target_length or self.sample_length,) if self.takes_ids else ()

    @property
    def mask_id(self) -> int:
        """Id of the mask token."""
        return self.classes - 1 if self.mask is None else self.mask

    @property
    def ids(self) -> int:
        """Number of ids, counted from 0, that may occur in the data."""
        has_own = self.kind == "masked_tokens" and self.mask is None
        return self.classes - 1 if has_own else self.classes


@dataclass(frozen=True)
class HeldOutMetric:
    """Metric of held-out samples: ``(mean loss - floor) * scale``, or accuracy."""

    name: str
    unit: str
    better: Literal["higher", "lower"]
    doc: str
    of: Literal["loss", "accuracy"] = "loss"
    """loss: mean cross-entropy per label, in nats. accuracy: fraction of labels predicted correctly."""
    scale: float = 1.0
    floor: float = 0.0
    """Lowest loss that any model can reach on this source, in nats, if it is known."""


@dataclass(frozen=True)
class TrainHeldOutSplit:
    """A source split into training and held-out samples."""

    train: BatchFunction
    """Batches as ``open`` returns them, without held-out samples."""
    held_out: dict[str, np.ndarray]
    """Held-out samples, the same for every seed; the first axis of every array is that of the samples."""


class DataSource(ABC):
    """A source of samples."""

    @property
    def depends_on_python_version(self) -> bool:
        """True if its samples come with Python and differ between Python versions."""
        return False

    @property
    def weighs_labels(self) -> bool:
        """True if samples have different numbers of labels, so that means of parts don't count equally."""
        return False

    @property
    def length_multiple(self) -> int | None:
        """Lengths of micro-batches are multiples of it, or the longest; None: all have the same length.

        Otherwise the length of a batch follows from its samples, so that each micro-batch is made by itself.
        """
        return None

    @property
    def packs_rows(self) -> bool:
        """True if a sample consists of several documents, told by ``POSITION_IDS``, that must not mix."""
        return False

    def steps_per_epoch(self, batch_size: int, shape: DataShape) -> int | None:
        """Global batches of *batch_size* samples of *shape* in an epoch; None: the source has no epochs.

        Runs in the worker.
        """
        return None

    def max_workers(self) -> int | None:
        """Largest number of processes that can share its samples; None: any number. Runs in the worker."""
        return None

    def user_modules(self) -> tuple[str, ...]:
        """Names of modules with the user's own code, whose lines are searched for in an error."""
        return ()

    @abstractmethod
    def problem(self, shape: DataShape) -> str | None:
        """Reason why this source can't feed *shape* (file missing, ...); None if it can.

        Must be fast, and import no torch.
        """

    @abstractmethod
    def open(self, shape: DataShape, seed: int, batch_size: int) -> BatchFunction:
        """Function that returns sample *i* of the global batch of *batch_size* at a step."""

    def held_out_metric(self, shape: DataShape) -> HeldOutMetric | None:
        """Metric of the held-out samples; None if the source holds none out."""
        return None

    def split_problem(self, shape: DataShape) -> str | None:
        """Reason why no samples of *shape* can be held out; None if some can.

        Without torch. Called only if ``problem`` returns None.
        """
        return None

    def split(self, shape: DataShape, seed: int, batch_size: int, held_out: int) -> TrainHeldOutSplit:
        """Batches for training, and *held_out* samples (or all there are) that never appear in one.

        Called only for sources that have a ``held_out_metric``.
        """
        raise NotImplementedError(f"{type(self).__name__} has a merit but no held-out rows")


PLUGIN_BASE = DataSource
