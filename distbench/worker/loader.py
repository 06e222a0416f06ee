"""Micro-batches of one rank from torch's DataLoader, with worker processes."""

import itertools
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from distbench.core import registry
from distbench.core.errors import UnsupportedCase
from distbench.data.base import BatchFunction, DataSource
from distbench.strategies.base import Batch, RankContext
from distbench.worker.user_code import user_line

Place = tuple[int, int]
"""Step, and number of the micro-batch in it."""


class LoaderError(RuntimeError):
    """A worker of the loader has failed."""

    def __init__(self, message: str, line: str) -> None:
        super().__init__(message)
        self.user_line = line
        """Innermost ``file.py:line`` of the user's code, in the worker; empty: none."""


@dataclass(frozen=True)
class _WorkerFailure:
    """An exception in a worker process, whose frames can't be sent."""

    message: str
    line: str


class _MicroBatches(Dataset[Any]):
    """Micro-batches by their place, as a worker makes them."""

    def __init__(self, context: RankContext, batches: BatchFunction, rows: range) -> None:
        self._case, self._batches, self._rows = context.case, batches, rows

    def __getitem__(self, place: Place) -> Batch | _WorkerFailure:
        step, number = place
        size = self._case.batch.micro_batch_size
        try:
            arrays = self._batches(step, self._rows[number * size : (number + 1) * size])
        except Exception as error:
            # user code: the rank reports whatever it raises
            traceback.print_exc()
            line = user_line(error, self._case.workload, self._case.data)
            return _WorkerFailure(f"{type(error).__name__}: {error}", line)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


class _Places(Sampler[Place]):
    """Places of the micro-batches of one epoch."""

    def __init__(self, steps_per_epoch: int | None, per_step: int) -> None:
        self._steps, self._per_step = steps_per_epoch, per_step
        self.epoch = -1

    def __iter__(self) -> Iterator[Place]:
        # a loader may begin the same epoch twice, so it does not count them
        first = self.epoch * (self._steps or 0)
        steps = itertools.count() if self._steps is None else range(first, first + self._steps)
        return ((step, number) for step in steps for number in range(self._per_step))


class BatchLoader:
    """Loader of the micro-batches of a rank, step after step from the first."""

    def __init__(self, context: RankContext, batches: BatchFunction, rows: range) -> None:
        """Prepare the loader that the case of *context* asks for; its workers start with the first batch.

        *rows* are those of the rank in each global batch, of which *batches* makes arrays.

        Raises:
            UnsupportedCase: the dataset can't be read by so many workers.
        """
        case, settings = context.case, context.case.loader
        source: DataSource = registry.create_plugin("data", case.data)
        workers, size = settings.workers or 0, case.batch.global_batch_size
        most = source.max_workers()
        if most is not None and workers > most:
            raise UnsupportedCase(
                f"loader.workers = {workers}: each worker would read the whole stream of an iterable "
                f"dataset, and drop the rows of the others; use at most {most}"
            )
        self._per_step = len(rows) // case.batch.micro_batch_size
        self._places = _Places(source.steps_per_epoch(size, context.workload.shape), self._per_step)
        self._loader: DataLoader[Any] = DataLoader(
            _MicroBatches(context, batches, rows),
            batch_size=None,
            sampler=self._places,
            num_workers=workers,
            pin_memory=settings.pin_memory,
            prefetch_factor=settings.prefetch_factor if workers else None,
            persistent_workers=settings.persistent_workers,
            # the default of Python before 3.14, for which a dataset need not be picklable
            multiprocessing_context="fork" if workers else None,
            # its seeds are not drawn from the generator that the model draws from
            generator=torch.Generator(),
        )
        self._batches: Iterator[Any] = iter(())

    def next_step(self) -> list[Batch]:
        """Micro-batches of the next step, in the memory of the host.

        Raises:
            LoaderError: a worker has failed.
        """
        return [self._next() for _ in range(self._per_step)]

    def _next(self) -> Batch:
        try:
            batch = next(self._batches)
        except StopIteration:
            # an epoch begins: workers that are not persistent start again
            self._places.epoch += 1
            self._batches = iter(self._loader)
            batch = next(self._batches)
        if isinstance(batch, _WorkerFailure):
            raise LoaderError(batch.message, batch.line)
        found: Batch = batch
        return found
