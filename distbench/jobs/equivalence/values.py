"""Read the recorded trainings of an equivalence check."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from distbench.ipc.trial_files import SKETCH_COLUMNS, fingerprint_version
from distbench.record import Record

QUANTITY_NAMES = {
    "loss": "loss",
    "gradient": "gradient",
    "gradient_size": "size of gradient",
    "grad_norm": "gradient norm",
    "parameter": "parameters",
    "update_size": "size of update",
    "mean_size": "mean size",
    "buffer": "buffer",
}
"""Compared quantity, in the order of a step -> name shown to users. ``grad_norm`` is the framework's own."""


class Quantity(NamedTuple):
    """One quantity of a training."""

    step: int
    """-1: before the first step."""
    family: str
    tensor: str = ""

    @property
    def order(self) -> tuple[int, int, str]:
        """Sort key: order of events in a training."""
        return self.step, [*QUANTITY_NAMES].index(self.family), self.tensor


@dataclass(frozen=True)
class RecordedTraining:
    """Values of one training of a check."""

    values: Mapping[Quantity, np.ndarray]
    """Place -> its number, or the sketch of its tensor (16,). For a parameter, from step 0 on, the sketch of
    its update since the start: an error of an update would vanish beside the parameter."""
    digests: Mapping[Quantity, str]
    """Place of a tensor -> digest of its bits."""
    sizes: Mapping[Quantity, float]
    """Place of a gradient, or of a parameter from step 0 on -> norm of the gradient, or of the update."""
    is_weighted: bool = True
    """True if updates are weighted as in ``worker.update_sizes``; in older records they are not."""

    @property
    def last_step(self) -> int:
        """Number of its last step, from 0 on."""
        return max(place.step for place in self.values)

    @property
    def fingerprint_versions(self) -> set[str]:
        """Versions of its fingerprints; there is only one."""
        return {fingerprint_version(digest) for digest in self.digests.values()}

    def distance(self, other: RecordedTraining, place: Quantity) -> float:
        """Distance of the two at *place*; infinite if one of them has no value."""
        mine, theirs = self.values.get(place), other.values.get(place)
        if mine is None or theirs is None:
            return math.inf
        distance = _length(mine - theirs)
        return distance if math.isfinite(distance) else math.inf

    def size(self, place: Quantity) -> float:
        """Norm of the value at *place*, to which distances there are relative."""
        return _length(self.values[place])


def recorded_trainings(record: Record) -> dict[str, RecordedTraining]:
    """Read the trainings of a check from its record, by name."""
    values: dict[str, dict[Quantity, np.ndarray]] = defaultdict(dict)
    digests: dict[str, dict[Quantity, str]] = defaultdict(dict)
    sizes: dict[str, dict[Quantity, float]] = defaultdict(dict)
    for row in record.tables.get("check_curve", []):
        for family in ("loss", "grad_norm"):
            # null, which stands for a non-finite number, becomes NaN
            number = np.array([row[family]], dtype=np.float64)
            values[row["training"]][Quantity(row["step"], family)] = number
    rows = record.tables.get("check_tensors", [])
    is_weighted = any(row["of"] == "update" for row in rows)
    for row in rows:
        place = Quantity(row["step"], "parameter" if row["of"] == "update" else row["of"], row["tensor"])
        sketch = [row[column] for column in SKETCH_COLUMNS]
        values[row["training"]][place] = np.array(sketch, dtype=np.float64)
        digests[row["training"]][place] = row["digest"]
        if row["of"] in ("gradient", "update"):
            sizes[row["training"]][place] = math.nan if row["norm"] is None else row["norm"]
    return {
        name: RecordedTraining(
            own if is_weighted else _with_updates(own), digests[name], sizes[name], is_weighted
        )
        for name, own in values.items()
    }


def _with_updates(values: dict[Quantity, np.ndarray]) -> dict[Quantity, np.ndarray]:
    nowhere = np.full(len(SKETCH_COLUMNS), math.nan)
    return {
        place: value - values.get(place._replace(step=-1), nowhere)
        if place.family == "parameter" and place.step >= 0
        else value
        for place, value in values.items()
    }


def _length(vector: np.ndarray) -> float:
    # numpy's own norm spends most of its time on cases that do not occur here
    return math.sqrt(float(vector @ vector))
