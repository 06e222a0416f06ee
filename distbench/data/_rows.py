"""Helpers shared by data sources: checks, token samples, masking, and windows of a token stream."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from distbench.data.base import (
    IGNORE_INDEX,
    BatchFunction,
    DataKind,
    DataShape,
    DataSource,
    TrainHeldOutSplit,
)

if TYPE_CHECKING:
    import numpy as np


TOKEN_KINDS: tuple[DataKind, ...] = ("tokens", "masked_tokens", "pairs")
"""Kinds of samples that are made of a row of tokens."""
CLASSIFICATION_KINDS: tuple[DataKind, ...] = ("features", "images")
"""Kinds of samples that consist of features or pixels and one label."""
MASKED_FRACTION = 0.15
"""Fraction of the tokens of a sample that are masked (BERT, arXiv:1810.04805, section 3.1); each is replaced
by the mask."""

_SOURCES_BY_KIND = dict.fromkeys(TOKEN_KINDS, "text, tokens or synthetic") | dict.fromkeys(
    CLASSIFICATION_KINDS, "digits or synthetic"
)


def data_kind_problem(name: str, kinds: Collection[DataKind], shape: DataShape) -> str | None:
    """Reason why source *name*, which supplies samples of *kinds*, can't feed *shape*; None if it can."""
    if shape.kind in kinds:
        return None
    given = " or ".join(kinds) if len(kinds) < 3 else f"{', '.join([*kinds][:-1])} or {[*kinds][-1]}"
    fitting = _SOURCES_BY_KIND[shape.kind]
    return f"{name} provides {given}, but the workload needs {shape.kind}; set data to {fitting}"


def file_problem(path: str) -> str | None:
    """Reason why the file at *path* can't be used (unreadable or empty); None if it can."""
    file = Path(path)
    if not file.exists():
        return f"path = {path!r}: no such file (looked in {Path.cwd()})"
    if not file.is_file():
        return f"path = {path!r}: not a file"
    if not os.access(file, os.R_OK):
        return f"path = {path!r}: no permission to read it"
    if file.stat().st_size == 0:
        return f"path = {path!r}: the file is empty"
    return None


def tokens_problem(what: str, shape: DataShape, available: int, largest: int) -> str | None:
    """Reason why *available* tokens with ids up to *largest* don't fit *shape*; None if they do."""
    needed = window_length(shape)
    if available < needed:
        length = f"length {shape.sample_length}" + (
            f" and {shape.target_length}" if shape.kind == "pairs" else ""
        )
        return f"{what} has {available} tokens; a sample of {length} needs {needed}"
    if largest < shape.ids:
        return None
    mask = ", and one id more for the mask" if shape.ids < shape.classes else ""
    return (
        f"{what} contains token ids up to {largest}, so it needs a vocabulary of {largest + 1}{mask}; "
        f"set vocab_size (classes), now {shape.classes}"
    )


def window_length(shape: DataShape) -> int:
    """Number of consecutive tokens that make up a sample of *shape*."""
    return (
        shape.sample_length
        if shape.kind == "masked_tokens"
        else shape.sample_length + max(1, shape.target_length)
    )


WindowFunction = Callable[[int, range], "np.ndarray"]
"""``windows(step, rows)`` -> tokens (rows, window)."""


def form_batches(windows: WindowFunction, shape: DataShape, seed: int, batch_size: int) -> BatchFunction:
    """Batches of *shape* from *windows*; masks are drawn from (seed, step) for the global batch."""
    import numpy as np

    def batches(step: int, rows: range) -> dict[str, np.ndarray]:
        tokens = windows(step, rows).astype(np.int64)
        if shape.kind == "masked_tokens":
            order = step_generator(seed, step, _MASKS).random((batch_size, shape.sample_length))
            return _masked(tokens, shape, order[rows.start : rows.stop])
        return _source_and_target(tokens, shape) if shape.kind == "pairs" else shift_labels(tokens)

    return batches


def _source_and_target(tokens: np.ndarray, shape: DataShape) -> dict[str, np.ndarray]:
    """First part of each window as source, and the rest as target."""
    import numpy as np

    # the decoder input begins with the last source token, so no start token is needed
    target = shift_labels(tokens[:, shape.sample_length - 1 :])
    return {
        "input_ids": np.ascontiguousarray(tokens[:, : shape.sample_length]),
        "decoder_input_ids": target["input_ids"],
        "labels": target["labels"],
    }


def _masked(tokens: np.ndarray, shape: DataShape, order: np.ndarray) -> dict[str, np.ndarray]:
    """Masked inputs, with labels at the masked positions: the first few by *order* (samples, length)."""
    import numpy as np

    # the same number in each sample, so that the mean loss of a batch is the mean of its micro-batches'
    # losses
    count = max(1, round(MASKED_FRACTION * shape.sample_length))
    places = np.argsort(order, axis=1, kind="stable")[:, :count]
    ids, labels = tokens.copy(), np.full_like(tokens, IGNORE_INDEX)
    np.put_along_axis(labels, places, np.take_along_axis(tokens, places, axis=1), axis=1)
    np.put_along_axis(ids, places, shape.mask_id, axis=1)
    return {"input_ids": ids, "labels": labels}


HELD_OUT_SEED = 2**32 - 1
"""Seed of held-out samples. No suite's seed can be as large, so no training step draws the same samples."""
# the random stream that chooses masked positions, separate from a source's own draws
_MASKS = 1

# fraction of the tokens used for training when the rest is held out
_TRAINED_FRACTION = 0.9


class TokenStream(DataSource):
    """A source that is one long row of tokens, read in windows."""

    @abstractmethod
    def tokens(self) -> np.ndarray:
        """All tokens (n,)."""

    def open(self, shape: DataShape, seed: int, batch_size: int) -> BatchFunction:
        return _random_windows(self.tokens(), shape, seed, batch_size)

    def split_problem(self, shape: DataShape) -> str | None:
        available, needed = len(self.tokens()), window_length(shape)
        cut = int(available * _TRAINED_FRACTION)
        if min(cut, available - cut) >= needed:
            return None
        return (
            f"{available:,} tokens: the last tenth is held out, and is too short for one sample of "
            f"{needed} tokens; use at least {10 * needed:,} tokens, or shorter samples"
        )

    def split(self, shape: DataShape, seed: int, batch_size: int, held_out: int) -> TrainHeldOutSplit:
        """Windows of the first nine tenths of the tokens, and *held_out* evenly spaced ones of the last.

        The held-out tail is contiguous: windows at random positions of all tokens would overlap with those
        used for training.

        Raises:
            ValueError: a part is too short for one sample.
        """
        import numpy as np

        if problem := self.split_problem(shape):
            raise ValueError(problem)
        tokens, needed = self.tokens(), window_length(shape)
        cut = int(len(tokens) * _TRAINED_FRACTION)
        tail = tokens[cut:]
        count = min(held_out, len(tail) - needed + 1)
        places = np.linspace(0, len(tail) - needed, count).astype(np.int64)
        rows = tail[places[:, None] + np.arange(needed)]
        judged = form_batches(lambda _step, _rows: rows, shape, HELD_OUT_SEED, count)
        return TrainHeldOutSplit(
            _random_windows(tokens[:cut], shape, seed, batch_size), judged(0, range(count))
        )


def _random_windows(tokens: np.ndarray, shape: DataShape, seed: int, batch_size: int) -> BatchFunction:
    """Batches of windows at random positions of *tokens* (n,), drawn from (seed, step) alone.

    Positions are drawn for the full global batch, and the requested samples are selected from them, so every
    division of a batch among ranks yields the same samples.
    """
    import numpy as np

    offsets = np.arange(window_length(shape))

    def windows(step: int, rows: range) -> np.ndarray:
        places = step_generator(seed, step).integers(0, len(tokens) - len(offsets) + 1, batch_size)
        chosen: np.ndarray = tokens[places[rows.start : rows.stop, None] + offsets]
        return chosen

    return form_batches(windows, shape, seed, batch_size)


def step_generator(seed: int, step: int, *more: int) -> np.random.Generator:
    """Random generator of a step, and of *more* keys within it, independent of other steps and seeds."""
    import numpy as np

    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, step, *more])))


def shift_labels(whole: np.ndarray) -> dict[str, np.ndarray]:
    """Inputs and labels, shifted by one, of *whole* (samples, length + 1)."""
    import numpy as np

    return {"input_ids": np.ascontiguousarray(whole[:, :-1]), "labels": np.ascontiguousarray(whole[:, 1:])}
