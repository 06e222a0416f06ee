"""``digits``: scikit-learn's real handwritten digits."""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distbench.data._rows import OF_PICTURES, generator, kind_problem
from distbench.data.base import Batches, Merit, Shape, Source, Split
from distbench.system.machine import install_hint

if TYPE_CHECKING:
    import numpy as np

_SIDE, _CLASSES, _BRIGHTEST = 8, 10, 16
_HELD_OUT_PART, _SPLIT_SEED = 5, 0


@dataclass(frozen=True)
class Digits(Source):
    """1,797 handwritten digits of 8 x 8 pixels (UCI, as scikit-learn carries them), scaled to 0..1.

    As images they are enlarged to the size that the model takes, each pixel repeated, and all channels are
    the same.

    Each epoch is a new permutation of all of them; a batch may run over the end of an epoch,
    and one larger than the data over several.
    """

    def problem(self, shape: Shape) -> str | None:
        if wrong_kind := kind_problem("digits", OF_PICTURES, shape):
            return wrong_kind
        if shape.kind == "images" and shape.length < _SIDE:
            return (
                f"image_size = {shape.length}: a digit has {_SIDE} pixels a side, and is never made smaller"
            )
        if shape.kind == "features" and shape.length != _SIDE**2:
            return (
                f"in_features (length) = {shape.length}: a digit has {_SIDE**2} features; as images "
                "(kind: images) digits have any size"
            )
        if shape.classes < _CLASSES:
            return f"classes = {shape.classes}: there are {_CLASSES} digits"
        if _file() is None:
            hint = install_hint("train")
            return f"scikit-learn, which contains the digits, is not installed; install it {hint}"
        return None

    def open(self, shape: Shape, seed: int, batch_size: int) -> Batches:
        return _epochs(*_table(), shape, seed, batch_size)

    def merit(self, shape: Shape) -> Merit:
        doc = "Share of held-out digits that are recognised; one digit in five is held out, always the same."
        return Merit("accuracy", "", "higher", doc, of="accuracy")

    def split(self, shape: Shape, seed: int, batch_size: int, held_out: int) -> Split:
        import numpy as np

        features, labels = _table()
        order = np.random.default_rng(_SPLIT_SEED).permutation(len(labels))
        out, kept = np.split(order, [len(order) // _HELD_OUT_PART])
        out = out[:held_out]
        training = _epochs(features[kept], labels[kept], shape, seed, batch_size)
        return Split(training, _rows(features[out], labels[out], shape))


def _table() -> tuple[np.ndarray, np.ndarray]:
    """Features (rows, 64), 0 to 1, and labels (rows,)."""
    import numpy as np

    file = _file()
    assert file is not None, "problem() checks before launch"
    table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    return (table[:, :-1] / _BRIGHTEST).astype(np.float32), np.ascontiguousarray(table[:, -1])


def _epochs(features: np.ndarray, labels: np.ndarray, shape: Shape, seed: int, batch_size: int) -> Batches:
    """Batches that go through all rows, in a new order each epoch."""
    import numpy as np

    @functools.lru_cache(maxsize=8)
    def order(epoch: int) -> np.ndarray:
        return generator(seed, epoch).permutation(len(labels))

    def batches(step: int, rows: range) -> dict[str, np.ndarray]:
        first = step * batch_size + rows.start
        places = (divmod(first + row, len(labels)) for row in range(len(rows)))
        chosen = np.array([order(epoch)[place] for epoch, place in places], dtype=np.int64)
        return _rows(features[chosen], labels[chosen], shape)

    return batches


def _rows(features: np.ndarray, labels: np.ndarray, shape: Shape) -> dict[str, np.ndarray]:
    """Arrays of *shape* of *features* (rows, 64) and *labels* (rows,)."""
    import numpy as np

    if shape.kind == "features":
        return {"features": features, "labels": labels}
    nearest = np.arange(shape.length) * _SIDE // shape.length
    images = features.reshape(-1, 1, _SIDE, _SIDE)[:, :, nearest[:, None], nearest]
    return {"pixel_values": images.repeat(shape.channels, axis=1), "labels": labels}


def _file() -> Path | None:
    """Content of ``sklearn.datasets.load_digits``; importing scikit-learn takes 2 s per rank."""
    spec = importlib.util.find_spec("sklearn")
    file = Path(spec.origin).parent / "datasets/data/digits.csv.gz" if spec and spec.origin else None
    return file if file and file.is_file() else None
