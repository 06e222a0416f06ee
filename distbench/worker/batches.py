"""Micro-batches of one rank, from the same global batch at every world size."""

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from distbench.core import registry
from distbench.data.base import POSITION_IDS, BatchFunction, DataSource
from distbench.metrics.base import TokenCount
from distbench.strategies.base import Batch, RankContext
from distbench.worker.loader import BatchLoader
from distbench.workloads.base import count_labels

MAX_PREFETCH_BYTES = 256 << 20
"""Maximum bytes of host memory for prefetched batches."""


class MicroBatchReader:
    """Micro-batches of any step for one rank."""

    def __init__(
        self,
        context: RankContext,
        row_order_seed: int | None = None,
        batches: BatchFunction | None = None,
        *,
        with_loader: bool = False,
    ) -> None:
        """Open the data, or use *batches*; *row_order_seed* shuffles the rows of each global batch.

        *with_loader*: through the loader of the case, if it has one. Steps are then read one after another.

        Raises:
            UnsupportedCase: the dataset can't be read by so many workers.
        """
        case = context.case
        source: DataSource = registry.create_plugin("data", case.data)
        size = case.batch.global_batch_size
        context.step.weighs_labels = source.weighs_labels
        self._batches = batches or source.open(context.workload.shape, case.seed, size)
        if row_order_seed is not None:
            # rows that must share a micro-batch stay together
            block = case.batch.micro_batch_size if case.depends_on_batch_division else size
            self._batches = _permute_rows(self._batches, size, row_order_seed, block)
        self._context = context
        self.is_of_user = bool(source.user_modules())
        """True if the rows come from the user's own code."""
        self._accumulation = case.batch.gradient_accumulation_steps
        # one process may drive several devices (nn.DataParallel); it then gets the rows of all of them
        share = size // context.data_parallel_size
        self._rows = range(context.data_parallel_rank * share, (context.data_parallel_rank + 1) * share)
        # of samples that differ in length each micro-batch is as long as its own need
        self.lengths_differ = source.length_multiple is not None
        """True if micro-batches differ in length."""
        micro = share // self._accumulation if self.lengths_differ else share
        self._parts = [self._rows[first : first + micro] for first in range(0, share, micro)]
        self._prefetched: dict[int, list[dict[str, np.ndarray]]] = {}
        has_loader = with_loader and case.loader.workers is not None
        self.loader = BatchLoader(context, self._batches, self._rows) if has_loader else None
        """Loader of the micro-batches; None: they are made in the process of the rank."""
        self._loaded: dict[int, list[Batch]] = {}
        """Micro-batches of steps that the loader has given already."""
        self.waits: list[float] = []
        """Seconds of each step so far until its micro-batches were there."""
        self.token_counts: list[TokenCount] = []
        """Tokens of each step so far; empty if all count."""

    def prefetch(self, steps: Sequence[int], report: Callable[[int], None] = lambda _: None) -> bool:
        """Make the batches of *steps*, so that only copying is left: all of them, or none if they are large.

        A GPU's host has to run ahead of it, and making a batch delays the launch of kernels, even in another
        thread, as Python runs one at a time. All or none, so that no step differs. Return True if all are
        made. *report* is called with the number of those that are made.
        """
        for number, step in enumerate(steps):
            report(number)
            if self._prefetch_step(step) * len(steps) > MAX_PREFETCH_BYTES:
                # what a loader has given is not given again
                self._prefetched.clear()
                return False
        return True

    def _prefetch_step(self, step: int) -> int:
        """Make the batch of *step*; return its size in bytes."""
        if self.loader:
            # copies: a tensor from a worker holds a descriptor and shared memory
            self._loaded[step] = loaded = [
                {name: x.clone() if x.is_shared() else x for name, x in batch.items()}
                for batch in self.loader.next_step()
            ]
            return sum(tensor.nbytes for batch in loaded for tensor in batch.values())
        self._prefetched[step] = made = self._make(step)
        return sum(array.nbytes for arrays in made for array in arrays.values())

    def micro_batches(self, step: int) -> list[Batch]:
        """Micro-batches of *step*, on the device."""
        began = time.perf_counter()
        batches = self._loaded_batches(step) if self.loader else self._made_batches(step)
        self.waits.append(time.perf_counter() - began)
        self._context.step.begin(batches)
        return batches

    def _make(self, step: int) -> list[dict[str, np.ndarray]]:
        """Arrays of the rank's samples of *step*: all in one, or one for each micro-batch."""
        return [self._batches(step, rows) for rows in self._parts]

    def _made_batches(self, step: int) -> list[Batch]:
        made = self._prefetched.pop(step, None) or self._make(step)
        if self._context.step.weighs_labels:
            self._count_tokens([{name: torch.from_numpy(x) for name, x in each.items()} for each in made])
        moved = [to_rank_device(each, self._context) for each in made]
        if len(moved) == self._accumulation:
            return moved
        (whole,), size = moved, len(self._rows) // self._accumulation
        return [
            {name: tensor[i * size : (i + 1) * size] for name, tensor in whole.items()}
            for i in range(self._accumulation)
        ]

    def _loaded_batches(self, step: int) -> list[Batch]:
        assert self.loader is not None
        loaded = self._loaded.pop(step, None) or self.loader.next_step()
        if self._context.step.weighs_labels:
            self._count_tokens(loaded)
        device = self._context.device
        # not pinned here: that is a setting of the loader
        moved = [{name: x.to(device, non_blocking=True) for name, x in each.items()} for each in loaded]
        return [_in_case_dtype(batch, self._context) for batch in moved]

    def _count_tokens(self, batches: Sequence[Batch]) -> None:
        """Count the tokens of a step, of *batches* on the host: kept ones would take memory of the device."""
        labels, shape = (
            sum(int(count_labels(each["labels"])) for each in batches),
            self._context.workload.shape,
        )
        if shape.takes_any_arrays or not shape.takes_ids:
            # as many as the workload has
            count = TokenCount(labels, len(self._rows) * shape.tokens, len(self._rows))
        else:
            computed = sum(each[name].numel() for each in batches for name in shape.inputs)
            lengths = [length for each in batches for length in _document_lengths(each, shape.inputs)]
            count = TokenCount(labels, computed, len(self._rows), lengths)
        self.token_counts.append(count)

    def fingerprint(self, step: int, *, all_ranks: bool = False) -> str:
        """Hash of this rank's rows of *step*, or with *all_ranks* of all rows, however they are divided."""
        size = self._context.case.batch.global_batch_size
        arrays = self._batches(step, range(size) if all_ranks else self._rows)
        return hashlib.sha256(b"".join(arrays[name].tobytes() for name in sorted(arrays))).hexdigest()


def _document_lengths(batch: Batch, inputs: Sequence[str]) -> Iterator[int]:
    """Yield the length of each sample of *batch*, or of each document in packed ones."""
    length = sum(batch[name].shape[1] for name in inputs)
    if POSITION_IDS not in batch:
        yield from [length] * len(batch["labels"])
        return
    begins = (batch[POSITION_IDS].flatten() == 0).nonzero().flatten().tolist()
    # each row begins with a document
    yield from (end - begin for begin, end in itertools.pairwise([*begins, batch[POSITION_IDS].numel()]))


def to_rank_device(arrays: dict[str, np.ndarray], context: RankContext) -> Batch:
    """*arrays* on the device of the rank, in fp64 if the case trains in it."""
    return _in_case_dtype(
        {name: _to_device(context.device, array) for name, array in arrays.items()}, context
    )


def _in_case_dtype(tensors: Batch, context: RankContext) -> Batch:
    if context.case.precision.master != "fp64":
        # engines cast to the other dtypes themselves
        return tensors
    return {name: x.double() if x.is_floating_point() else x for name, x in tensors.items()}


def _to_device(device: torch.device, array: np.ndarray) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        # a copy from pageable memory may wait for the device, and the host could then not run ahead of it
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _permute_rows(batches: BatchFunction, size: int, seed: int, block: int) -> BatchFunction:
    """*batches* of *size* rows, shuffled by *seed* within each *block* of rows."""

    def reordered(step: int, rows: range) -> dict[str, np.ndarray]:
        draws = np.random.default_rng([seed, step])
        within = [start + draws.permutation(block) for start in range(0, size, block)]
        order = np.concatenate(within)[rows.start : rows.stop]
        return {name: array[order] for name, array in batches(step, range(size)).items()}

    return reordered
