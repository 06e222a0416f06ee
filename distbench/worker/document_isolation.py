"""Proof that a model keeps the documents of packed rows apart, before it trains."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from distbench.core import registry
from distbench.core.dtypes import TORCH_DTYPE_NAMES
from distbench.data.base import IGNORE_INDEX, POSITION_IDS, DataSource
from distbench.strategies.base import Batch, RankContext, UnsupportedCase
from distbench.strategies.engine import Engine
from distbench.worker.batches import to_rank_device
from distbench.worker.zero_tensors import noise_in_zero_tensors
from distbench.workloads.base import mean_of

T = TypeVar("T")

_LEAST_LENGTH = 6
_FRAMEWORKS = ("torch", "deepspeed", "accelerate", "lightning", "lightning_fabric")
"""Packages whose modules wrap a model, and pass its arguments on."""
_ROUNDING = 16
"""Rounding errors of the compute dtype by which the loss of a document may depend on its place in a row."""


@dataclass(frozen=True)
class _Documents:
    """Three documents of random tokens that fill a row together."""

    rows: int
    length: int
    classes: int

    def batch(self, order: tuple[int, int, int], seed_of_others: int) -> dict[str, np.ndarray]:
        """Rows with the documents in *order*, of which the second one, 1, always has the same tokens.

        Only its labels count.
        """
        third = self.length // 3
        sizes = (third, third, self.length - 2 * third)
        parts = {"input_ids": [], "labels": [], POSITION_IDS: []}  # type: dict[str, list[np.ndarray]]
        for document in order:
            shape, seed = (self.rows, sizes[document]), 0 if document == 1 else seed_of_others
            draws = np.random.default_rng([seed, document])
            ids, labels = (draws.integers(0, self.classes, shape) for _ in range(2))
            parts["input_ids"].append(ids)
            parts["labels"].append(labels if document == 1 else np.full(shape, IGNORE_INDEX))
            parts[POSITION_IDS].append(np.tile(np.arange(sizes[document]), (self.rows, 1)))
        return {name: np.concatenate(arrays, axis=1) for name, arrays in parts.items()}

    def shifted_first(self, shift: int) -> dict[str, np.ndarray]:
        """The rows with *shift* added to the first token of document 1, whose later labels alone count."""
        batch, first = self.batch((0, 1, 2), 1), self.length // 3
        batch["input_ids"][:, first] = (batch["input_ids"][:, first] + shift) % self.classes
        batch["labels"][:, first] = IGNORE_INDEX
        return batch


def check_documents(engine: Engine, context: RankContext) -> None:
    """Check that the loss of a document in a packed row depends on its own tokens alone.

    Nothing to check if the data of the case is not packed. A collective call, before the first step.

    Raises:
        UnsupportedCase: it depends on other documents, or on its place in the row, or that can't be shown.
    """
    source: DataSource = registry.create_plugin("data", context.case.data)
    if not source.packs_rows:
        return
    shape, batch = context.workload.shape, context.case.batch
    if shape.sample_length < _LEAST_LENGTH:
        raise UnsupportedCase(
            f"packing: rows of {shape.sample_length} tokens are too short; use {_LEAST_LENGTH} or more"
        )
    share = batch.global_batch_size // context.data_parallel_size
    documents = _Documents(share // batch.gradient_accumulation_steps, shape.sample_length, shape.ids)
    if not _evaluated(engine, lambda module: context.workload.takes_position_ids(_without_wrappers(module))):
        raise UnsupportedCase(
            f"packing: forward of the model takes no {POSITION_IDS}, the place of each token in its row; add "
            "that argument, and attend within the rows that it tells, or use padding: longest"
        )
    # the first two tell what is not reproducible in the computation itself
    variants = (((0, 1, 2), 1), ((0, 1, 2), 1), ((0, 1, 2), 2), ((1, 0, 2), 2))
    batches = [documents.batch(*variant) for variant in variants]
    batches += [documents.shifted_first(shift) for shift in (0, 1)]
    own, again, among_others, elsewhere, before, after = (
        _loss(engine, context, to_rank_device(batch, context)) for batch in batches
    )
    if abs(among_others - own) > 2 * abs(again - own):
        raise UnsupportedCase(
            "packing: the model lets tokens see other rows that share theirs: the loss of one changed by "
            f"{abs(among_others - own):.1e} with the tokens of the others; it must attend within documents, "
            f"which begin where {POSITION_IDS} is 0, or use padding: longest"
        )
    # in fp64 parts of a model may compute in fp32 all the same
    dtypes = ("fp32", context.case.precision.compute)
    rounding = max(torch.finfo(getattr(torch, TORCH_DTYPE_NAMES[name])).eps for name in dtypes)
    if abs(elsewhere - own) > _ROUNDING * rounding * max(1.0, abs(own)):
        raise UnsupportedCase(
            "packing: the loss of a row depends on its place in a packed one: it changed by "
            f"{abs(elsewhere - own):.1e}; the model must take positions from {POSITION_IDS}, or use "
            "padding: longest"
        )
    if abs(after - before) <= 2 * abs(again - own):
        raise UnsupportedCase(
            "packing: whether the model keeps rows apart can't be shown: its loss does not depend on earlier "
            "tokens of the same row either (a part that is 0 at first may hide them); use padding: longest"
        )


def _loss(engine: Engine, context: RankContext, batch: Batch) -> float:
    """Loss of *batch* in evaluation mode, with noise in tensors that are 0 everywhere."""

    def score(module: nn.Module) -> float:
        with noise_in_zero_tensors(module, is_compiled=context.case.compile != "none"):
            return float(mean_of(context.workload.loss(module, batch)))

    return _evaluated(engine, score)


def _evaluated(engine: Engine, score: Callable[[nn.Module], T]) -> T:
    """``engine.evaluate(score)``.

    Raises:
        UnsupportedCase: the engine has no evaluation.
    """
    try:
        return engine.evaluate(score)
    except NotImplementedError as error:
        raise UnsupportedCase(f"packing: whether documents stay apart can't be shown: {error}") from error


def _without_wrappers(module: nn.Module) -> nn.Module:
    """The model inside *module*, which frameworks may wrap."""
    while type(module).__module__.partition(".")[0] in _FRAMEWORKS and _passes_on(module):
        module = next(module.children())
    return module


def _passes_on(module: nn.Module) -> bool:
    """True if the forward pass of *module* takes any arguments, and it has a child to pass them on to."""
    kinds = [each.kind for each in inspect.signature(type(module).forward).parameters.values()][1:]
    only_any = kinds == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]
    return only_any and next(module.children(), None) is not None
