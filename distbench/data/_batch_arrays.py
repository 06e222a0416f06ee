"""Arrays of a batch, from rows of a dataset of the user. Runs in the worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from distbench.core.units import join_words
from distbench.core.user_callables import import_callable
from distbench.data._dataset import OPTION, DatasetError
from distbench.data._generator_states import GeneratorStates
from distbench.data.base import IGNORE_INDEX, POSITION_IDS, DataShape

Arrays = dict[str, np.ndarray]
_MIN_LABELS = 8


@dataclass
class BatchArrays:
    """Makes the arrays that a workload takes from rows, and checks them."""

    dataset: str
    """Name of the dataset, for messages."""
    shape: DataShape
    collate: str | None = None
    shift_labels: bool = False
    weigh_labels: bool = False
    pad_token_id: int | None = None
    """Token that fills rows; None: they are equally long."""
    length_multiple: int | None = None
    """Rows are filled up to the longest of them, rounded up to a multiple; None: to that of the workload."""
    packs_rows: bool = False
    """Each item is a list of rows, which become one."""
    _labels_per_row: int | None = None
    """Number of labels of the first row so far."""

    def of_rows(self, rows: list[Any]) -> Arrays:
        """Arrays of *rows*, whose first axis is that of the rows.

        Raises:
            DatasetError: the rows are not those that the workload takes.
        """
        arrays = self._stacked(rows) if self.collate is None else self._collated(rows, self.collate)
        if not self.shape.takes_any_arrays:
            arrays = self._checked(self._taken(arrays))
        return arrays

    def _collated(self, rows: list[Any], collate: str) -> Arrays:
        states = GeneratorStates()
        batch = import_callable("collate", collate)(rows)
        if not states.are_current():
            states.restore()
            raise self._error(
                f"collate = {collate!r} draws random numbers, so the rows of a rank would depend on how a "
                "batch is divided; draw them in the rows of the dataset"
            )
        arrays = self._by_name(batch)
        for name, array in arrays.items():
            if array.shape[:1] != (len(rows),):
                raise self._error(
                    f"{name} of {len(rows)} rows has the shape {array.shape}; the first axis of each array "
                    "that collate returns must be that of the rows"
                )
        return arrays

    def _stacked(self, rows: list[Any]) -> Arrays:
        if self.packs_rows:
            named = [self._packed([self._by_name(row) for row in pack]) for pack in rows]
        else:
            named = [self._by_name(row) for row in rows]
            if self.pad_token_id is not None:
                named = self._padded(named, self.pad_token_id)
        if others := next((row.keys() for row in named if row.keys() != named[0].keys()), None):
            raise self._error(
                f"a row has {join_words(sorted(named[0]))}, and another has {join_words(sorted(others))}; "
                "give all rows the same arrays"
            )
        shapes = {name: {row[name].shape for row in named} for name in named[0]}
        if uneven := next((name for name, found in shapes.items() if len(found) > 1), None):
            raise self._error(
                f"{uneven} differs in shape from row to row; set padding: longest, or max_length, for tokens "
                "of a causal model, or name a function in collate that makes a batch of rows"
            )
        return {name: np.stack([row[name] for row in named]) for name in shapes}

    def _packed(self, rows: list[Arrays]) -> Arrays:
        """One row of *rows* after one another, whose labels are those of their own tokens alone."""
        rows = [self._without_masks(row) for row in rows]
        for row in rows:
            if missing := [name for name in ("input_ids", "labels") if name not in row]:
                shift = "; shift_labels: true makes them of input_ids" if missing == ["labels"] else ""
                raise self._error(f"a row has {join_words(sorted(row))}, but no {join_words(missing)}{shift}")
            if extra := sorted(row.keys() - {"input_ids", "labels"}):
                raise self._error(
                    f"a row has {join_words(extra)}, which the workload does not take; leave it out"
                )
            if len({array.size for array in row.values()}) > 1:
                sizes = join_words([f"{array.size} {name}" for name, array in sorted(row.items())])
                raise self._error(f"a row has {sizes}; packing needs one of each for every token")
        packed = {name: np.concatenate([row[name].ravel() for row in rows]) for name in rows[0]}
        lengths = [row["input_ids"].size for row in rows]
        if self.shift_labels:
            # the last token of a row predicts none of the next
            packed["labels"] = np.concatenate([_shifted(row["labels"].ravel()[None])[0] for row in rows])
        # what fills the rest is a row of its own, so that no token sees nothing
        rest = self.shape.sample_length - sum(lengths)
        return {
            name: np.concatenate([array, np.full(max(0, rest), fill, array.dtype)])
            for name, array, fill in (
                ("input_ids", packed["input_ids"], self.pad_token_id or 0),
                ("labels", packed["labels"], IGNORE_INDEX),
            )
        } | {POSITION_IDS: np.concatenate([np.arange(length) for length in (*lengths, max(0, rest))])}

    def _padded(self, rows: list[Arrays], token: int) -> list[Arrays]:
        """*rows*, filled with *token* on the right up to one length."""
        rows = [self._without_masks(row) for row in rows]
        length = self._padded_length([max((array.size for array in row.values()), default=0) for row in rows])
        fill = {"input_ids": token, "labels": IGNORE_INDEX}
        return [
            {
                name: np.pad(array.ravel(), (0, length - array.size), constant_values=fill.get(name, 0))
                for name, array in row.items()
            }
            for row in rows
        ]

    def _without_masks(self, row: Arrays) -> Arrays:
        """*row* without masks of ones, and with the labels that are still to be shifted."""
        arrays = {name: array for name, array in row.items() if not _masks_nothing(name, array)}
        if self.shift_labels and "input_ids" in arrays:
            # before they are filled: what fills them is no label
            arrays = {"labels": arrays["input_ids"], **arrays}
        return arrays

    def _padded_length(self, found: list[int]) -> int:
        """Length to which rows with *found* tokens are filled."""
        length, longest = self.shape.sample_length, max(found)
        if longest > length:
            raise self._error(
                f"a row has {longest:,} tokens, but the workload takes {length:,}; set its length (seq_len), "
                "or shorten the row"
            )
        if min(found) == 0:
            raise self._error("a row has no tokens; leave such rows out")
        multiple = self.length_multiple
        return length if multiple is None else min(length, -(-longest // multiple) * multiple)

    def _by_name(self, batch: Any) -> Arrays:
        """Arrays of a row or *batch* by name: their own, or in the order in which the workload takes them."""
        if isinstance(batch, torch.Tensor | np.ndarray):
            batch = (batch,)
        if isinstance(batch, Mapping):
            return {str(name): self._array(value, str(name)) for name, value in batch.items()}
        if not isinstance(batch, tuple | list):
            raise self._error(
                f"a row or batch is of type {type(batch).__name__}; it must be a dict of arrays, or a tuple"
            )
        names = (*self.shape.inputs, "labels")
        if len(batch) > len(names):
            raise self._error(
                f"a row has {len(batch)} parts, but the workload takes {join_words(names)}; return a dict"
            )
        return {name: self._array(value, name) for name, value in zip(names, batch, strict=False)}

    def _array(self, value: Any, name: str) -> np.ndarray:
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu()
            value = value.float() if value.dtype == torch.bfloat16 else value
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise self._error(
                f"{name} is no array of numbers ({type(value).__name__}); leave it out of the rows"
            )
        return np.ascontiguousarray(array) if array.ndim else array

    def _taken(self, arrays: Arrays) -> Arrays:
        """Those of *arrays* that the workload takes, each in the shape that it takes."""
        expected_names = (*self.shape.inputs, "labels", *((POSITION_IDS,) if self.packs_rows else ()))
        if self.shift_labels and "input_ids" in arrays:
            arrays = {"labels": arrays["input_ids"], **arrays}
        if missing := [name for name in expected_names if name not in arrays]:
            shift = "; shift_labels: true makes them of input_ids" if missing == ["labels"] else ""
            raise self._error(
                f"a row has {join_words(sorted(arrays))}, but no {join_words(missing)}; the workload takes "
                f"{join_words(expected_names)}{shift}"
            )
        extra = [n for n in sorted(arrays) if n not in expected_names and not _masks_nothing(n, arrays[n])]
        if extra:
            raise self._error(
                f"a row has {join_words(extra)}, which the workload does not take; leave it out, or use the "
                "workload user with a loss_function, which gets the whole batch"
            )
        expected = {self.shape.inputs[0]: self.shape.input_shape, "labels": self.shape.label_shape}
        if self.length_multiple is not None:
            # as they were filled
            expected = dict.fromkeys(expected, arrays[self.shape.inputs[0]].shape[1:])
        for name, size in expected.items():
            if (found := arrays[name].shape[1:]) != size:
                raise self._error(
                    f"{name} of a row has the shape {found}, but the workload takes {size}; change the sizes "
                    "of the workload (length, seq_len, image_size) or those of the rows"
                )
        return {name: arrays[name] for name in expected_names}

    def _checked(self, arrays: Arrays) -> Arrays:
        """*arrays* in the dtypes that the workload takes; ids and labels must be in range."""
        for name in (*(self.shape.inputs if self.shape.takes_ids else ()), "labels"):
            if arrays[name].dtype.kind == "f" and (arrays[name] != np.trunc(arrays[name])).any():
                raise self._error(f"{name} has fractions, but the workload takes ids (whole numbers)")
        dtype = np.int64 if self.shape.takes_ids else np.float32
        inputs = {name: arrays[name].astype(dtype) for name in self.shape.inputs}
        labels = arrays["labels"].astype(np.int64)
        if self.shift_labels:
            labels = labels if self.packs_rows else _shifted(labels)
        elif self.shape.kind == "tokens" and labels_equal_inputs(labels, inputs["input_ids"]):
            raise self._error(
                "labels equal input_ids, as transformers' collators make them for models that shift them; "
                "set shift_labels: true"
            )
        counted = labels != IGNORE_INDEX
        ids = {**(inputs if self.shape.takes_ids else {}), "labels": labels[counted]}
        for name, values in ids.items():
            self._check_range(name, values)
        self._check_counts(counted.reshape(len(counted), -1).sum(axis=1))
        positions = {POSITION_IDS: arrays[POSITION_IDS].astype(np.int64)} if self.packs_rows else {}
        return {**inputs, "labels": labels, **positions}

    def _check_range(self, name: str, ids: np.ndarray) -> None:
        if ids.size and (ids.min() < 0 or ids.max() >= self.shape.classes):
            raise self._error(
                f"{name} has ids from {ids.min()} to {ids.max()}, but the workload takes 0 to "
                f"{self.shape.classes - 1:,}; set its vocab_size (classes)"
            )

    def _check_counts(self, counts: np.ndarray) -> None:
        """Check the numbers of labels of each row."""
        if not counts.size:
            return
        if counts.min() == 0:
            raise self._error(f"a row has no label other than {IGNORE_INDEX}; leave such rows out")
        # of all rows so far: a call may have one
        known = self._labels_per_row = self._labels_per_row or int(counts[0])
        low, high = min(known, int(counts.min())), max(known, int(counts.max()))
        if not self.weigh_labels and low != high:
            raise self._error(
                f"rows have {low} to {high} labels other than {IGNORE_INDEX}, so the mean "
                "of the means of ranks is not the mean of the global batch; set weigh_labels: true"
            )

    def _error(self, problem: str) -> DatasetError:
        return DatasetError(f"{OPTION} = {self.dataset!r}: {problem}")


def _shifted(labels: np.ndarray) -> np.ndarray:
    """*labels* (rows, length), each at the place of the token before its own."""
    return np.concatenate([labels[:, 1:], np.full_like(labels[:, :1], IGNORE_INDEX)], axis=1)


def _masks_nothing(name: str, array: np.ndarray) -> bool:
    """True if the array *name* is a mask of ones."""
    return name == "attention_mask" and bool(array.all())


def labels_equal_inputs(labels: np.ndarray, ids: np.ndarray) -> bool:
    """True if each label that counts is the input at its position, and inputs differ.

    Of a few labels that may be chance.
    """
    counted = labels != IGNORE_INDEX
    return bool(
        counted.sum() >= _MIN_LABELS and (labels == ids)[counted].all() and (ids != ids.flat[0]).any()
    )
