"""The first row of a user's dataset, and the shape of the data that it tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from distbench.data._dataset import open_rows
from distbench.data.base import INPUT_ARRAYS

_INPUT_NAMES = tuple(dict.fromkeys(names[0] for names in INPUT_ARRAYS.values()))


@dataclass(frozen=True)
class FirstRow:
    """The inputs of the first row of a dataset."""

    inputs: torch.Tensor | None = None
    """None: the row has none that a workload takes."""

    @classmethod
    def read(cls, dataset: str) -> FirstRow:
        """Read the first row of what ``package.module:callable`` returns.

        Raises:
            Exception: whatever the user's code raises.
        """
        (row,) = open_rows(dataset, 0, 1, shuffle=False, drop_last=False).read(0, range(1))
        if isinstance(row, Mapping):
            inputs = next((row[name] for name in _INPUT_NAMES if name in row), None)
        else:
            inputs = row[0] if isinstance(row, tuple | list) and row else row
        try:
            return cls(torch.as_tensor(inputs))
        except (TypeError, ValueError, RuntimeError):
            # text, or pictures as objects: the plan names the problem
            return cls()

    @property
    def shape(self) -> dict[str, Any]:
        """Options of the workload ``user`` that the inputs decide; empty: no workload takes such inputs."""
        sizes = () if self.inputs is None else tuple(self.inputs.shape)
        if len(sizes) == 3 and sizes[1] == sizes[2]:
            return {"kind": "images", "image_size": sizes[1], "channels": sizes[0]}
        if self.inputs is None or len(sizes) != 1:
            return {}
        return {"kind": "features" if self.inputs.is_floating_point() else "tokens", "length": sizes[0]}
