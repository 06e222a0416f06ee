"""``digits``: scikit-learn's real handwritten digits."""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distbench.data._rows import CLASSIFICATION_KINDS, data_kind_problem, step_generator
from distbench.data.base import BatchFunction, DataShape, DataSource, HeldOutMetric, TrainHeldOutSplit
from distbench.system.machine import install_hint

if TYPE_CHECKING:
    import numpy as np

_SIDE, _CLASSES, _MAX_PIXEL = 8, 10, 16
_HELD_OUT_DIVISOR, _SPLIT_SEED = 5, 0


@dataclass(frozen=True)
class Digits(DataSource):
    """1,797 handwritten digits of 8 x 8 pixels (UCI, as scikit-learn carries them), scaled to 0..1.

    As images they are enlarged to the size that the model takes, each pixel repeated, and all channels are
    the same.

    Each epoch is a new permutation of all of them; a batch may run over the end of an epoch,
    and one larger than the data over several.
    """

    def problem(self, shape: DataShape) -> str | None:
        if wrong_kind := data_kind_problem("digits", CLASSIFICATION_KINDS, shape):
            return wrong_kind
        if shape.kind == "images" and shape.sample_length < _SIDE:
            side = shape.sample_length
            return (
                f"image_size = {side}: a digit has {_SIDE} pixels per side and is never scaled down; use at "
                f"least {_SIDE}"
            )
        if shape.kind == "features" and shape.sample_length != _SIDE**2:
            return (
                f"in_features (length) = {shape.sample_length}: a digit has {_SIDE**2} features; set it "
                f"to {_SIDE**2}, or use kind: images, where digits have any size"
            )
        if shape.classes < _CLASSES:
            return f"classes = {shape.classes}: digits needs at least {_CLASSES} classes"
        if _digits_file() is None:
            hint = install_hint("train")
            return f"scikit-learn, which contains the digits, is not installed; install it {hint}"
        return None

    def open(self, shape: DataShape, seed: int, batch_size: int) -> BatchFunction:
        return _epoch_batches(*_load_table(), shape, seed, batch_size)

    def held_out_metric(self, shape: DataShape) -> HeldOutMetric:
        doc = (
            "Fraction of held-out digits that are classified correctly; the same fifth of the digits is "
            "always held out."
        )
        return HeldOutMetric("accuracy", "", "higher", doc, of="accuracy")

    def split(self, shape: DataShape, seed: int, batch_size: int, held_out: int) -> TrainHeldOutSplit:
        import numpy as np

        features, labels = _load_table()
        order = np.random.default_rng(_SPLIT_SEED).permutation(len(labels))
        out, kept = np.split(order, [len(order) // _HELD_OUT_DIVISOR])
        out = out[:held_out]
        training = _epoch_batches(features[kept], labels[kept], shape, seed, batch_size)
        return TrainHeldOutSplit(training, _rows(features[out], labels[out], shape))


def _load_table() -> tuple[np.ndarray, np.ndarray]:
    """Features (samples, 64), 0 to 1, and labels (samples,)."""
    import numpy as np

    file = _digits_file()
    assert file is not None, "problem() checks before launch"
    table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    return (table[:, :-1] / _MAX_PIXEL).astype(np.float32), np.ascontiguousarray(table[:, -1])


def _epoch_batches(
    features: np.ndarray, labels: np.ndarray, shape: DataShape, seed: int, batch_size: int
) -> BatchFunction:
    """Batches that go through all samples, in a new order each epoch."""
    import numpy as np

    @functools.lru_cache(maxsize=8)
    def order(epoch: int) -> np.ndarray:
        return step_generator(seed, epoch).permutation(len(labels))

    def batches(step: int, rows: range) -> dict[str, np.ndarray]:
        first = step * batch_size + rows.start
        places = (divmod(first + row, len(labels)) for row in range(len(rows)))
        chosen = np.array([order(epoch)[place] for epoch, place in places], dtype=np.int64)
        return _rows(features[chosen], labels[chosen], shape)

    return batches


def _rows(features: np.ndarray, labels: np.ndarray, shape: DataShape) -> dict[str, np.ndarray]:
    """Arrays of *shape*, made from *features* (samples, 64) and *labels* (samples,)."""
    import numpy as np

    if shape.kind == "features":
        return {"features": features, "labels": labels}
    nearest = np.arange(shape.sample_length) * _SIDE // shape.sample_length
    images = features.reshape(-1, 1, _SIDE, _SIDE)[:, :, nearest[:, None], nearest]
    return {"pixel_values": images.repeat(shape.channels, axis=1), "labels": labels}


def _digits_file() -> Path | None:
    """File of ``sklearn.datasets.load_digits``, found without importing scikit-learn (2 s per rank)."""
    spec = importlib.util.find_spec("sklearn")
    file = Path(spec.origin).parent / "datasets/data/digits.csv.gz" if spec and spec.origin else None
    return file if file and file.is_file() else None
