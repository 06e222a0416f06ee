"""Rows of a dataset of the user, in the order of its epochs. Runs in the worker."""

from __future__ import annotations

import functools
import itertools
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from distbench.core.units import join_words
from distbench.core.user_callables import import_callable
from distbench.data._generator_states import GeneratorStates, seed_generators
from distbench.data._layouts import batches_of_like_length, best_fit_packs, row_length
from distbench.data._rows import step_generator

OPTION = "dataset"


class DatasetError(ValueError):
    """The user's dataset does not give the rows that the workload takes."""


@functools.cache
def load_dataset(name: str) -> Any:
    """Dataset that ``package.module:callable`` returns.

    Raises:
        ValueError: it can't be imported, raises, or returns something else.
    """
    make = import_callable(OPTION, name)
    states = GeneratorStates()
    try:
        # a random split is the same in each process
        seed_generators(0)
        dataset = make()
    except Exception as error:
        # user code: whatever it raises is reported with the option that named it
        raise DatasetError(f"{OPTION} = {name!r} raised {type(error).__name__}: {error}") from error
    finally:
        states.restore()
    if isinstance(dataset, Mapping):
        raise DatasetError(
            f"{OPTION} = {name!r} returned a mapping of {join_words([*map(str, dataset)]) or 'nothing'}; "
            "return one of these datasets"
        )
    if not (is_map_style(dataset) or hasattr(dataset, "__iter__")):
        raise DatasetError(
            f"{OPTION} = {name!r} returned {type(dataset).__name__}; it must return a dataset: an object "
            "with __len__ and __getitem__, or one with __iter__"
        )
    if not is_map_style(dataset) and (isinstance(dataset, Iterator) or iter(dataset) is iter(dataset)):
        raise DatasetError(
            f"{OPTION} = {name!r} returned {type(dataset).__name__}, which can be read only once; return an "
            "object whose __iter__ begins again"
        )
    return dataset


def open_rows(
    name: str,
    seed: int,
    batch_size: int,
    *,
    shuffle: bool,
    drop_last: bool,
    group_by_length: bool = False,
    capacity: int | None = None,
) -> RowReader:
    """Rows of the dataset that the callable *name* returns, for global batches of *batch_size*.

    Args:
        group_by_length: Fill global batches with rows of like length.
        capacity: Tokens of a pack of rows, which is read in place of a row; None: rows are not packed.

    Raises:
        ValueError: the dataset can't be made, is too small, or can't be read twice alike.
    """
    dataset = load_dataset(name)
    if is_map_style(dataset):
        lengths = row_lengths(name) if group_by_length else None
        dataset = dataset if capacity is None else packed_dataset(name, capacity)
        return MapRows(name, dataset, seed, batch_size, shuffle=shuffle, drop_last=drop_last, lengths=lengths)
    if group_by_length or capacity is not None:
        option = "group_by_length" if group_by_length else "packing"
        raise DatasetError(
            f"{OPTION} = {name!r} is iterable, but {option} needs the length of each row in advance; return "
            f"a dataset with __len__ and __getitem__, or set {option}: false"
        )
    return StreamRows(name, dataset, seed, batch_size)


def epoch_steps(dataset: Any, batch_size: int, *, drop_last: bool) -> int:
    """Global batches of *batch_size* in an epoch of *dataset*; 0: a stream, whose length is unknown."""
    size = len(dataset) if is_map_style(dataset) else 0
    return size // batch_size if drop_last else -(-size // batch_size)


def is_map_style(dataset: Any) -> bool:
    """True if a row of *dataset* is read by its index; otherwise it is a stream."""
    # torch's IterableDataset has a __getitem__ that raises
    is_stream = isinstance(dataset, IterableDataset)
    return not is_stream and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


class RowReader(ABC):
    """Rows of a dataset by step and place in the global batch."""

    def __init__(self, name: str, dataset: Any, seed: int, batch_size: int) -> None:
        self._name, self._dataset = name, dataset
        self._seed, self._batch_size = seed, batch_size
        self._draws = False
        first, second = (pickle.dumps(_plain(self.read(0, range(1)))) for _ in range(2))
        if first != second:
            raise DatasetError(
                f"{OPTION} = {name!r}: the first row is another one whenever it is read, although random, "
                "numpy and torch are seeded, so cases can't be given the same rows; derive its random "
                "numbers from the index"
            )

    def read(self, step: int, rows: range) -> list[Any]:
        """Items of *rows* of the global batch of *step*.

        The same in each process: what draws from the global generators of random, numpy or torch draws from
        the seed, the epoch and the index, and the generators are left as they were.
        """
        before = GeneratorStates()
        try:
            items = self._read(step, rows)
            if self._draws or before.are_current():
                return items
            # rows that draw are read again, seeded; those that don't are not slowed down
            self._draws = True
            return self._read(step, rows)
        finally:
            if self._draws:
                before.restore()

    @abstractmethod
    def _read(self, step: int, rows: range) -> list[Any]:
        """Items of *rows* of the global batch of *step*."""

    def _seed_row(self, *key: int) -> None:
        """Seed the global generators for the row with the *key*, if any row draws from them."""
        if self._draws:
            seed_generators(int(step_generator(self._seed, *key).integers(2**32)))


@functools.cache
def row_lengths(name: str) -> np.ndarray:
    """Number of tokens of each row of the map-style dataset that the callable *name* returns.

    Of the column ``length``, if it is a dataset of Hugging Face with one; otherwise each row is read once.

    Raises:
        DatasetError: a row has no tokens to count.
    """
    dataset = load_dataset(name)
    if "length" in (getattr(dataset, "column_names", None) or ()):
        return np.asarray(dataset["length"], np.int64)
    states = GeneratorStates()
    try:
        lengths = []
        for index in range(len(dataset)):
            # rows that draw have the same lengths in each process
            seed_generators(index)
            length = row_length(_row_of(dataset, index))
            if length is None:
                raise DatasetError(
                    f"{OPTION} = {name!r}: row {index} has no input_ids, so its length is unknown; name them "
                    "so, or give the dataset a column length"
                )
            lengths.append(length)
        return np.array(lengths, np.int64)
    finally:
        states.restore()


def _row_of(dataset: Any, index: int) -> Any:
    many = getattr(dataset, "__getitems__", None)
    return many([index])[0] if many else dataset[index]


class PackedDataset:
    """Packs of the rows of a map-style dataset: each item is a list of rows."""

    def __init__(self, dataset: Any, packs: Sequence[Sequence[int]]) -> None:
        self._dataset, self._packs = dataset, packs

    def __len__(self) -> int:
        return len(self._packs)

    def __getitem__(self, index: int) -> list[Any]:
        return [_row_of(self._dataset, row) for row in self._packs[index]]


@functools.cache
def packed_dataset(name: str, capacity: int) -> PackedDataset:
    """Packs of at most *capacity* tokens of the rows of the dataset that the callable *name* returns.

    Raises:
        DatasetError: a row is empty, or too long.
    """
    try:
        packs = best_fit_packs(row_lengths(name), capacity)
    except ValueError as error:
        raise DatasetError(
            f"{OPTION} = {name!r}: {error}: set the length of the workload (seq_len), or shorten the row"
        ) from error
    return PackedDataset(load_dataset(name), packs)


class MapRows(RowReader):
    """Rows of a map-style dataset, in the order of torch's DistributedSampler.

    Its ranks together take consecutive rows of one order in each step: the global batch. The order of an
    epoch is drawn from the seed and the epoch (``set_epoch``).
    """

    def __init__(
        self,
        name: str,
        dataset: Any,
        seed: int,
        batch_size: int,
        *,
        shuffle: bool,
        drop_last: bool,
        lengths: np.ndarray | None = None,
    ) -> None:
        self._size, self._shuffle, self._lengths = len(dataset), shuffle, lengths
        self._steps = epoch_steps(dataset, batch_size, drop_last=drop_last)
        if not self._size:
            raise DatasetError(f"{OPTION} = {name!r} has no rows; return a dataset that has some")
        if self._size < batch_size:
            raise DatasetError(
                f"{OPTION} = {name!r} has {self._size:,} rows, fewer than the global batch of "
                f"{batch_size:,}; use a smaller batch.global_batch_size, or more rows"
            )
        super().__init__(name, dataset, seed, batch_size)

    def _read(self, step: int, rows: range) -> list[Any]:
        epoch, within = divmod(step, self._steps)
        # DistributedSampler pads the last batch with the first rows of the same epoch
        places = range(within * self._batch_size + rows.start, within * self._batch_size + rows.stop)
        order = self._order(epoch)
        indices = [int(order[place % len(order)]) for place in places]
        many = getattr(self._dataset, "__getitems__", None)
        if many is None:
            return [self._item(epoch, index) for index in indices]
        if not self._draws:
            return list(many(indices))
        return [self._item(epoch, index, many) for index in indices]

    def _item(self, epoch: int, index: int, many: Callable[[list[int]], Sequence[Any]] | None = None) -> Any:
        self._seed_row(epoch, index)
        return many([index])[0] if many else self._dataset[index]

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def _order(self, epoch: int) -> Sequence[int] | np.ndarray:
        if not self._shuffle:
            return range(self._size)
        generator = torch.Generator().manual_seed(self._seed + epoch)
        order: np.ndarray = torch.randperm(self._size, generator=generator).numpy()
        if self._lengths is None:
            return order
        # the same rows as without groups
        rows = np.resize(order, self._steps * self._batch_size)
        batches = batches_of_like_length(rows, self._lengths, self._batch_size)
        chosen: np.ndarray = batches[torch.randperm(len(batches), generator=generator).numpy()]
        return chosen.ravel()


class StreamRows(RowReader):
    """Rows of an iterable dataset: each global batch takes the next ones, and its end is its beginning."""

    def __init__(self, name: str, dataset: Any, seed: int, batch_size: int) -> None:
        self._iterator: Iterator[Any] = iter(())
        self._next_row, self._epoch = 0, -1
        self._epoch_row = 0
        """First row of the epoch."""
        super().__init__(name, dataset, seed, batch_size)

    def _read(self, step: int, rows: range) -> list[Any]:
        first = step * self._batch_size + rows.start
        if first < self._next_row:
            self._iterator, self._next_row, self._epoch = iter(()), 0, -1
        # rows of other ranks are read and dropped, as the stream has no index
        items = itertools.islice(self._stream(), first - self._next_row, first - self._next_row + len(rows))
        return list(items)

    def _stream(self) -> Iterator[Any]:
        while True:
            self._seed_row(self._next_row)
            try:
                item = next(self._iterator)
            except StopIteration:
                self._begin_epoch()
                continue
            self._next_row += 1
            yield item

    def _begin_epoch(self) -> None:
        if self._epoch >= 0 and self._next_row == self._epoch_row:
            raise DatasetError(f"{OPTION} = {self._name!r} gives no rows in epoch {self._epoch}")
        self._epoch += 1
        self._epoch_row = self._next_row
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(self._epoch)
        self._iterator = iter(self._dataset)


def _plain(value: Any) -> Any:
    """*value* in a form that is pickled alike if it is equal."""
    if isinstance(value, torch.Tensor):
        # numpy lacks bf16
        return str(value.dtype), value.detach().cpu().reshape(-1).view(torch.uint8).numpy()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value
