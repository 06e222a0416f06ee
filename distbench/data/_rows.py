"""What sources share: why one can't feed a workload, and windows of a long row of tokens."""

from __future__ import annotations

import os
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from distbench.data.base import Batches, Kind, Shape, Source, Split

if TYPE_CHECKING:
    import numpy as np


_SOURCES: dict[Kind, str] = {"tokens": "text, tokens or synthetic", "features": "digits"}


def kind_problem(name: str, kind: Kind, shape: Shape) -> str | None:
    """Why source *name*, which gives *kind*, can't feed *shape*, or None."""
    if kind == shape.kind:
        return None
    return f"{name} provides {kind}, but the workload needs {shape.kind}; set data to {_SOURCES[shape.kind]}"


def file_problem(path: str) -> str | None:
    """Why the file at *path* can't be read or is empty, or None."""
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


def tokens_problem(what: str, shape: Shape, available: int, largest: int) -> str | None:
    """Why *available* tokens with ids up to *largest* are too few or too many, or None."""
    if available <= shape.length:
        return f"{what} has {available} tokens; a sample of length {shape.length} needs {shape.length + 1}"
    if largest >= shape.classes:
        return (
            f"{what} has token ids up to {largest}, so it needs a vocabulary of {largest + 1}; "
            f"vocab_size (classes) = {shape.classes}"
        )
    return None


# share of the tokens that is trained on where the rest is held out
_KEPT = 0.9


class TokenRow(Source):
    """A source that is one long row of tokens, seen through windows."""

    kind: ClassVar[Kind] = "tokens"

    @abstractmethod
    def tokens(self) -> np.ndarray:
        """All of them (n,)."""

    def open(self, shape: Shape, seed: int, batch_size: int) -> Batches:
        return _windows(self.tokens(), shape, seed, batch_size)

    def split(self, shape: Shape, seed: int, batch_size: int, held_out: int) -> Split:
        """Windows of the first nine tenths of the tokens, and *held_out* evenly spread over the last.

        The tail is held out whole: windows at random places of all of it would overlap with those
        that are trained on.

        Raises:
            ValueError: a part is too short for one sample.
        """
        import numpy as np

        tokens = self.tokens()
        cut = int(len(tokens) * _KEPT)
        tail = tokens[cut:]
        if min(cut, len(tail)) <= shape.length:
            raise ValueError(
                f"{len(tokens)} tokens: their last tenth, which is held out, is too short for one sample of "
                f"{shape.length + 1}"
            )
        count = min(held_out, len(tail) - shape.length)
        places = np.linspace(0, len(tail) - shape.length - 1, count).astype(np.int64)
        rows = tail[places[:, None] + np.arange(shape.length + 1)]
        return Split(_windows(tokens[:cut], shape, seed, batch_size), pair(rows.astype(np.int64)))


def _windows(tokens: np.ndarray, shape: Shape, seed: int, batch_size: int) -> Batches:
    """Batches of windows at random places of *tokens* (n,), drawn from (seed, step) alone.

    The places of the whole global batch are drawn and the rows asked for are cut out, so that
    every way of sharing a batch among ranks sees the same rows.
    """
    import numpy as np

    offsets = np.arange(shape.length + 1)

    def batches(step: int, rows: range) -> dict[str, np.ndarray]:
        places = generator(seed, step).integers(0, len(tokens) - shape.length, batch_size)
        chosen = places[rows.start : rows.stop, None] + offsets
        return pair(tokens[chosen].astype(np.int64))

    return batches


def generator(seed: int, step: int) -> np.random.Generator:
    """Random numbers of one step, independent of those of any other step or seed."""
    import numpy as np

    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, step])))


def pair(whole: np.ndarray) -> dict[str, np.ndarray]:
    """Inputs and labels, shifted by one, of *whole* (rows, length + 1)."""
    import numpy as np

    return {"input_ids": np.ascontiguousarray(whole[:, :-1]), "labels": np.ascontiguousarray(whole[:, 1:])}
