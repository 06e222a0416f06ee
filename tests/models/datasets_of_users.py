"""Datasets that suites of the tests name as ``datasets_of_users:...``: 64 rows of 32 tokens; some break."""

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

ROWS, LENGTH = 64, 32
TOKENS = np.random.default_rng(0).integers(0, 256, (ROWS, LENGTH + 1))
DICT = dict[str, Any]


def row(index: int) -> DICT:
    return {"input_ids": TOKENS[index, :-1], "labels": TOKENS[index, 1:]}


class Rows(Dataset[Any]):
    def __init__(self, size: int = ROWS) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return row(index)


class AsTuples(Rows):
    def __getitem__(self, index: int) -> Any:
        return TOKENS[index, :-1], TOKENS[index, 1:]


class AsLists(Rows):
    """As Hugging Face datasets gives them."""

    def __getitem__(self, index: int) -> Any:
        return {name: array.tolist() for name, array in row(index).items()}


class AtOnce(Rows):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [row(index) for index in indices]

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError("rows are read many at a time")


class Unshifted(Rows):
    """As transformers' collators make them."""

    def __getitem__(self, index: int) -> Any:
        ids = TOKENS[index, :-1]
        return {"input_ids": ids, "attention_mask": np.ones(LENGTH, int), "labels": ids}


class Unlabelled(Rows):
    def __getitem__(self, index: int) -> Any:
        return {"input_ids": TOKENS[index, :-1]}


class Unequal(Rows):
    """Rows have 8 to 31 labels."""

    def __getitem__(self, index: int) -> Any:
        labels = TOKENS[index, 1:].copy()
        labels[8 + index % 24 :] = -100
        return {"input_ids": TOKENS[index, :-1], "labels": labels}


class Unfinished(Rows):
    """Some rows have no label."""

    def __getitem__(self, index: int) -> Any:
        labels = np.full(LENGTH, -100) if index == 3 else TOKENS[index, 1:]
        return {"input_ids": TOKENS[index, :-1], "labels": labels}


class Augmented(Rows):
    """Each row is changed at random, by all generators that people use."""

    def __getitem__(self, index: int) -> Any:
        ids = TOKENS[index].copy()
        ids[random.randrange(LENGTH)] = int(torch.randint(0, 256, ()))
        ids[np.random.randint(0, LENGTH)] = 0
        return {"input_ids": ids[:-1], "labels": ids[1:]}


class Flipped(Rows):
    """Half of the rows are reversed, at random, as augmentation does."""

    def __getitem__(self, index: int) -> Any:
        ids = TOKENS[index]
        if random.random() < 0.5:
            ids = ids[::-1]
        return {"input_ids": ids[:-1].copy(), "labels": ids[1:].copy()}


class Shuffled(Rows):
    """Only a few rows draw random numbers."""

    def __getitem__(self, index: int) -> Any:
        ids = TOKENS[index].copy()
        if index % 7 == 3:
            np.random.shuffle(ids)
        return {"input_ids": ids[:-1], "labels": ids[1:]}


class Sized(IterableDataset[Any]):
    """A stream with a length, as torch suggests for progress bars."""

    def __len__(self) -> int:
        return ROWS

    def __iter__(self) -> Iterator[Any]:
        return (row(index) for index in range(ROWS))


class Exhausted(IterableDataset[Any]):
    """Has rows in its first epoch alone."""

    def __init__(self) -> None:
        self.left = 20

    def __iter__(self) -> Iterator[Any]:
        count, self.left = self.left, max(0, self.left - 10)
        return (row(index) for index in range(count))


class OnceOnly:
    """Its iterator is always the same one."""

    def __init__(self) -> None:
        self.iterator = once()

    def __iter__(self) -> Iterator[Any]:
        return self.iterator


class SomeNames(Rows):
    def __getitem__(self, index: int) -> Any:
        return row(index) if index else {**row(0), "weight": 1.0}


class Fractions(Rows):
    def __getitem__(self, index: int) -> Any:
        return {**row(index), "labels": TOKENS[index, 1:] + 0.9}


class Bf16(Rows):
    """As a row of features of a tensor in bf16, which numpy lacks."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((LENGTH,), index, dtype=torch.bfloat16), index % 4


class Ignored(Rows):
    """Every second row of features has no label."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((LENGTH,), float(index)), -100 if index % 2 else 0


class PerProcess(Rows):
    """Its rows depend on the process that reads them."""

    def __getitem__(self, index: int) -> Any:
        return row((index + os.getpid()) % ROWS)


class Unrepeatable(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return {"input_ids": self.generator.integers(0, 256, LENGTH), "labels": TOKENS[index, 1:]}


class Ragged(Rows):
    def __getitem__(self, index: int) -> Any:
        return {"input_ids": TOKENS[index, : 1 + index], "labels": TOKENS[index, : 1 + index]}


class Tokens(Rows):
    """Rows of 8 to 31 tokens, as a tokenizer gives them."""

    def __getitem__(self, index: int) -> Any:
        ids = TOKENS[index, : 8 + index % 24]
        return {"input_ids": ids, "attention_mask": np.ones(len(ids), int)}


class WithEmpty(Tokens):
    """Row 3 has no tokens."""

    def __getitem__(self, index: int) -> Any:
        return {"input_ids": TOKENS[index, :0]} if index == 3 else super().__getitem__(index)


class UnevenLabels(Rows):
    def __getitem__(self, index: int) -> Any:
        return {"input_ids": TOKENS[index, :-1], "labels": TOKENS[index, 2:]}


class Unnamed(Rows):
    """As for a loss function of one's own."""

    def __getitem__(self, index: int) -> Any:
        return {"ids": TOKENS[index, : 8 + index % 24]}


class WithColumn(Tokens):
    """As a dataset of Hugging Face with a column of lengths."""

    column_names = ("input_ids", "length")

    def __getitem__(self, index: Any) -> Any:
        return [8 + row % 24 for row in range(self.size)] if index == "length" else super().__getitem__(index)


class ManyTokens(Rows):
    def __getitem__(self, index: int) -> Any:
        return {"input_ids": np.random.default_rng(index).integers(0, 256, 8 + index * 7 % 24)}


class Short(Rows):
    def __getitem__(self, index: int) -> Any:
        return {"input_ids": TOKENS[index, :16], "labels": TOKENS[index, 1:17]}


class LargeIds(Rows):
    def __getitem__(self, index: int) -> Any:
        return {"input_ids": TOKENS[index, :-1] + 1000, "labels": TOKENS[index, 1:]}


class WithText(Rows):
    def __getitem__(self, index: int) -> Any:
        return {**row(index), "text": "once upon a time"}


class Masked(Rows):
    def __getitem__(self, index: int) -> Any:
        return {**row(index), "attention_mask": np.arange(LENGTH) < 16}


class Broken(Rows):
    def __getitem__(self, index: int) -> Any:
        if index == 17:
            raise OSError("row 17 can't be read")
        return row(index)


class Slow(Rows):
    """Takes far longer than a step of a small model."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        return row(index)


class Unpicklable(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.read = lambda index: row(index)

    def __getitem__(self, index: int) -> Any:
        return self.read(index)


class Stream(IterableDataset[Any]):
    """30 rows, the first of which tells the epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for index in range(30):
            yield row((index + self.epoch) % ROWS)


class Empty(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def drawn_split() -> Any:
    """Return a random half of the rows, and draw from all generators."""
    kept = [*range(ROWS)]
    random.shuffle(kept)
    np.random.shuffle(kept)
    return torch.utils.data.random_split(torch.utils.data.Subset(Rows(), kept), [32, 32])[0]


def splits() -> DICT:
    return {"train": Rows(), "test": Rows()}


def few() -> Rows:
    return Rows(5)


def odd() -> Rows:
    return Rows(61)


def many_tokens() -> Rows:
    """500 rows of 8 to 31 tokens."""
    return ManyTokens(500)


class LongerHalves(Rows):
    """Of each 8 rows in a row, the last 4 or the first 4 are four times as long."""

    def __getitem__(self, index: int) -> Any:
        is_long = index // 4 % 2 == (index // 8) % 2
        return {"input_ids": np.random.default_rng(index).integers(0, 256, 240 if is_long else 60)}


def longer_halves() -> Rows:
    return LongerHalves()


def with_column() -> Rows:
    return WithColumn()


def once() -> Iterator[Any]:
    return (row(index) for index in range(ROWS))


def number() -> int:
    return 3


def raises() -> Rows:
    raise FileNotFoundError("no such corpus")


def halves(rows: list[DICT]) -> DICT:
    """Collate the first halves of rows."""
    return {name: np.stack([each[name][: LENGTH // 2] for each in rows]) for name in rows[0]}


def masking(rows: list[DICT]) -> DICT:
    """Collate rows of which a random token is masked, as transformers' collators do."""
    batch = {name: np.stack([each[name] for each in rows]) for name in rows[0]}
    batch["input_ids"][:, int(torch.randint(0, LENGTH, ()))] = 0
    return batch


def colliding(rows: list[DICT]) -> DICT:
    """Collate without an axis of rows."""
    return {name: np.concatenate([each[name] for each in rows]) for name in rows[0]}
