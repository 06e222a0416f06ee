"""The first row of a user's dataset, the shape of the data that it tells, and the lengths of all rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from distbench.data._batch_arrays import labels_equal_inputs
from distbench.data._dataset import is_map_style, load_dataset, open_rows, row_lengths
from distbench.data.base import INPUT_ARRAYS

_INPUT_NAMES = tuple(dict.fromkeys(names[0] for names in INPUT_ARRAYS.values()))


@dataclass(frozen=True)
class FirstRow:
    """The inputs of the first row of a dataset."""

    inputs: torch.Tensor | None = None
    """None: the row has none that a workload takes."""
    labels: torch.Tensor | None = None
    """None: the row has none, or they are no array."""

    @classmethod
    def read(cls, dataset: str) -> FirstRow:
        """Read the first row of what ``package.module:callable`` returns.

        Raises:
            Exception: whatever the user's code raises.
        """
        (row,) = open_rows(dataset, 0, 1, shuffle=False, drop_last=False).read(0, range(1))
        if isinstance(row, Mapping):
            inputs = next((row[name] for name in _INPUT_NAMES if name in row), None)
            labels = row.get("labels")
        else:
            inputs, labels, *_ = (*row, None, None) if isinstance(row, tuple | list) and row else (row, None)
        return cls(_tensor(inputs), _tensor(labels))

    @property
    def needs_shift(self) -> bool:
        """True if its tokens have no labels, or are their own labels, as transformers has them."""
        if self.inputs is None or self.shape.get("kind") != "tokens":
            return False
        if self.labels is None:
            return True
        is_alike = self.labels.shape == self.inputs.shape and not self.labels.is_floating_point()
        return is_alike and labels_equal_inputs(self.labels.cpu().numpy(), self.inputs.cpu().numpy())

    @property
    def shape(self) -> dict[str, Any]:
        """Options of the workload ``user`` that the inputs decide; empty: no workload takes such inputs."""
        sizes = () if self.inputs is None else tuple(self.inputs.shape)
        if len(sizes) == 3 and sizes[1] == sizes[2]:
            return {"kind": "images", "image_size": sizes[1], "channels": sizes[0]}
        if self.inputs is None or len(sizes) != 1:
            return {}
        return {"kind": "features" if self.inputs.is_floating_point() else "tokens", "length": sizes[0]}


def length_range(dataset: str) -> list[int]:
    """Tokens of the shortest and the longest row of what ``package.module:callable`` returns.

    Empty if it is iterable: its rows can't be read in advance.

    Raises:
        Exception: whatever the user's code raises.
    """
    if not is_map_style(load_dataset(dataset)):
        return []
    lengths = row_lengths(dataset)
    return [int(lengths.min()), int(lengths.max())]


def _tensor(value: Any) -> torch.Tensor | None:
    """*value* as a tensor; None: it is text, or an object, of which the plan names the problem."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return None
