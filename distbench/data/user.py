"""``user``: a dataset of one's own, named in the suite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from distbench.core.bounds import Bound
from distbench.core.units import join_words
from distbench.core.user_callables import callable_problem, top_modules
from distbench.data.base import BatchFunction, DataShape, DataSource


@dataclass(frozen=True)
class UserDataset(DataSource):
    """A dataset of one's own: ``package.module:callable`` returns it.

    A suite that names a callable is a program: running it runs that code. Every case and every world size
    sees the same global batches, in the order that torch's DistributedSampler gives them.
    """

    dataset: str
    """``package.module:callable``; called without arguments it returns a map-style dataset (__len__ and
    __getitem__, as that of torch or of Hugging Face datasets), or an iterable one, which is read in its own
    order and begins again at its end. A row is a dict of arrays, or a list of them: inputs, labels."""
    collate: str | None = None
    """``package.module:callable`` of a list of rows that returns a batch: a dict of arrays, or a list. null:
    their arrays are stacked. How a batch is divided must not change its rows."""
    shuffle: bool = True
    """Read the rows of a map-style dataset in a new order each epoch, drawn from seed and epoch."""
    last_batch: Literal["drop", "pad"] = "drop"
    """Rows at the end of an epoch that are no whole global batch: drop them, or pad them with the first rows
    of the epoch, as DistributedSampler does by default."""
    shift_labels: bool = False
    """Labels of tokens are at the position of their token, as transformers has them, or missing: label each
    position with the next token."""

    weigh_labels: bool = False
    """Rows have different numbers of labels (-100 elsewhere), at least one: take the mean over the labels of
    the global batch instead of the mean over rows."""

    padding: Literal["none", "longest", "max_length"] = "none"
    """Fill rows of unequal length on the right with labels that don't count (-100): for causal models, whose
    tokens see none that follow. longest: up to the longest row of a micro-batch. max_length: up to the length
    of the workload. Both imply weigh_labels."""
    pad_to_multiple_of: Annotated[int | None, Bound(1)] = field(default=None, metadata={"since": 4})
    """Round the length of a micro-batch up to a multiple, at most to the length of the workload. Only with
    padding: longest; null: don't."""
    pad_token_id: Annotated[int, Bound(0)] = 0
    """Token that fills them."""

    group_by_length: bool = field(default=False, metadata={"since": 4})
    """Fill each global batch with rows of like length, as transformers' train_sampling_strategy:
    group_by_length: rows are drawn anew each epoch and sorted by length in groups of up to 50 global batches.
    There a group has 50 batches of one device and its accumulation, here of all devices, so that batches are
    the same for every world size; and they come in a drawn order, so that timed steps are typical of all."""
    packing: bool = field(default=False, metadata={"since": 4})
    """Put several rows of unequal length into one, up to the length of the workload, by best-fit decreasing
    as TRL does. Tokens see only those of their own row: the model gets position_ids that begin anew, and one
    that lets rows mix is refused. It implies weigh_labels."""

    def problem(self, shape: DataShape) -> str | None:
        names = {"dataset": self.dataset, "collate": self.collate}
        problems = [
            f"{option} = {name!r}: {problem}"
            for option, name in names.items()
            if name is not None and (problem := callable_problem(name))
        ]
        problems += self._row_problems(shape)
        return "; ".join(problems) or None

    def _row_problems(self, shape: DataShape) -> Iterator[str]:
        """Yield the problems of options that change rows."""
        of_tokens = {
            "shift_labels": self.shift_labels,
            "padding": self.padding != "none",
            "packing": self.packing,
        }
        for option, is_set in {**of_tokens, "weigh_labels": self.weigh_labels}.items():
            if is_set and shape.takes_any_arrays:
                yield f"{option}: loss_function of the workload gets rows as they are; remove one of the two"
            elif is_set and option in of_tokens and shape.kind != "tokens":
                yield f"{option} is for workloads of tokens, but this one takes {shape.kind}"
        fills_rows = self.packing or self.padding != "none"
        if fills_rows and shape.kind == "tokens" and self.pad_token_id >= shape.ids:
            yield (
                f"pad_token_id = {self.pad_token_id}: the ids of the workload are 0 to {shape.ids - 1}; "
                "use one of them"
            )
        yield from self._packing_problems() if self.packing else self._padding_problems()

    def _packing_problems(self) -> Iterator[str]:
        others = {
            "padding": self.padding != "none",
            "pad_to_multiple_of": self.pad_to_multiple_of,
            "collate": self.collate,
            "group_by_length": self.group_by_length,
        }
        if set_too := [name for name, value in others.items() if value]:
            yield f"packing fills rows by itself; remove {join_words(set_too)}, or set packing: false"

    def _padding_problems(self) -> Iterator[str]:
        if self.padding != "none" and self.collate:
            yield "padding and collate both make rows equally long; remove one of them"
        if self.pad_to_multiple_of is not None and self.padding != "longest":
            yield (
                f"pad_to_multiple_of = {self.pad_to_multiple_of} is only used with padding: longest, but "
                f"padding = {self.padding}; remove it, or change padding"
            )
        if self.group_by_length and not self.shuffle:
            yield "group_by_length orders rows by length, and shuffle: false keeps their order; remove one"
        if self.group_by_length and self.padding == "none" and not self.collate:
            yield "group_by_length is for rows of unequal length; set padding: longest, or remove it"

    @property
    def weighs_labels(self) -> bool:
        return self.weigh_labels or self.packing or self.padding != "none"

    @property
    def packs_rows(self) -> bool:
        return self.packing

    @property
    def length_multiple(self) -> int | None:
        return (self.pad_to_multiple_of or 1) if self.padding == "longest" else None

    def user_modules(self) -> tuple[str, ...]:
        return top_modules((self.dataset, self.collate))

    def steps_per_epoch(self, batch_size: int, shape: DataShape) -> int | None:
        from distbench.data._dataset import epoch_steps, load_dataset, packed_dataset

        dataset = load_dataset(self.dataset)
        if self.packing:
            dataset = packed_dataset(self.dataset, shape.sample_length)
        return epoch_steps(dataset, batch_size, drop_last=self.last_batch == "drop") or None

    def max_workers(self) -> int | None:
        from distbench.data._dataset import is_map_style, load_dataset

        return None if is_map_style(load_dataset(self.dataset)) else 1

    def open(self, shape: DataShape, seed: int, batch_size: int) -> BatchFunction:
        """Function that returns rows of the global batch of a step.

        Raises:
            ValueError: the dataset can't be made, or has other rows than *shape*.
        """
        from distbench.data._batch_arrays import BatchArrays
        from distbench.data._dataset import open_rows

        rows = open_rows(
            self.dataset,
            seed,
            batch_size,
            shuffle=self.shuffle,
            drop_last=self.last_batch == "drop",
            group_by_length=self.group_by_length,
            capacity=shape.sample_length if self.packing else None,
        )
        arrays = BatchArrays(
            self.dataset,
            shape,
            self.collate,
            self.shift_labels,
            self.weighs_labels,
            self.pad_token_id if self.packing or self.padding != "none" else None,
            self.length_multiple,
            self.packing,
        )
        return lambda step, wanted: arrays.of_rows(rows.read(step, wanted))
