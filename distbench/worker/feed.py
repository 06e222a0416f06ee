"""The micro-batches of one rank: its rows of the global batch, the same at every world size."""

import hashlib

import numpy as np
import torch

from distbench import registry
from distbench.case import Case
from distbench.data.base import Batches, Source
from distbench.workloads.base import Workload

Batch = dict[str, torch.Tensor]


class Feed:
    """Micro-batches of any step for rank *rank* of *processes*."""

    def __init__(
        self,
        case: Case,
        workload: Workload,
        rank: int,
        processes: int,
        device: torch.device,
        order: int | None = None,
        batches: Batches | None = None,
    ) -> None:
        """Open the data, or use *batches*; *order* seeds a permutation of the rows of each global batch."""
        source: Source = registry.make("data", case.data)
        size = case.batch.global_batch_size
        self._batches = batches or source.open(workload.shape, case.seed, size)
        if order is not None:
            self._batches = _reordered(self._batches, size, order)
        self._device = device
        self._accumulation = case.batch.gradient_accumulation_steps
        # one process may drive several devices (nn.DataParallel); it then gets the rows of all of them
        share = size // processes
        self._rows = range(rank * share, (rank + 1) * share)
        # engines cast to the other dtypes themselves
        self._is_double = case.precision.master == "fp64"

    def micro_batches(self, step: int) -> list[Batch]:
        """Micro-batches of *step*, on the device."""
        arrays = self._batches(step, self._rows)
        whole = {
            name: torch.from_numpy(array).to(self._device, non_blocking=True)
            for name, array in arrays.items()
        }
        if self._is_double:
            whole = {name: x.double() if x.is_floating_point() else x for name, x in whole.items()}
        size = len(self._rows) // self._accumulation
        return [
            {name: tensor[i * size : (i + 1) * size] for name, tensor in whole.items()}
            for i in range(self._accumulation)
        ]

    def fingerprint(self, step: int) -> str:
        """Hash of this rank's rows of *step*."""
        arrays = self._batches(step, self._rows)
        return hashlib.sha256(b"".join(arrays[name].tobytes() for name in sorted(arrays))).hexdigest()


def _reordered(batches: Batches, size: int, seed: int) -> Batches:
    def reordered(step: int, rows: range) -> dict[str, np.ndarray]:
        order = np.random.default_rng([seed, step]).permutation(size)[rows.start : rows.stop]
        return {name: array[order] for name, array in batches(step, range(size)).items()}

    return reordered
