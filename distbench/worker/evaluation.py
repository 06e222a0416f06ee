"""Evaluation on held-out rows, the same for every strategy."""

import functools
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from distbench.data.base import HeldOutMetric
from distbench.strategies.base import Batch, RankContext, UnsupportedCase
from distbench.strategies.engine import Engine
from distbench.worker.batches import to_rank_device
from distbench.workloads.base import count_labels

MAX_LOGITS = 2**24
"""Maximum logits in fp64 at a time: 128 MiB; those of 8,192 tokens over 128,256 classes take 8.4 GB."""


class HeldOutEvaluation:
    """Figure of merit over the held-out rows, of which this rank evaluates its share."""

    def __init__(self, context: RankContext, merit: HeldOutMetric, rows: dict[str, np.ndarray]) -> None:
        """Select this rank's share of *rows* (the first axis of each array), and cut it into parts."""
        self._loss, self._merit = context.workload.loss, merit
        # sharded parameters are gathered by all ranks together, so all need the same number of parts
        count = len(next(iter(rows.values())))
        own = np.array_split(np.arange(count), context.data_parallel_size)[context.data_parallel_rank]
        largest = -(-count // context.data_parallel_size)
        parts = -(-largest // context.case.batch.micro_batch_size)
        self._parts = [
            to_rank_device({name: array[part] for name, array in rows.items()}, context)
            for part in np.array_split(own, parts)
        ]
        if count < context.data_parallel_size * parts:
            raise UnsupportedCase(f"{count} held-out rows are too few for {context.data_parallel_size} ranks")

    def value(self, engine: Engine) -> float:
        """Figure of merit over all rows. A collective call, between steps."""
        sums = torch.zeros(3, dtype=torch.float64)
        for part in self._parts:
            sums += engine.evaluate(functools.partial(self._sums, part))
        dist.all_reduce(sums)
        nats, correct, labels = sums.tolist()
        if self._merit.of == "accuracy":
            return float(correct / labels)
        return float((nats / labels - self._merit.floor) * self._merit.scale)

    def _sums(self, part: Batch, module: nn.Module) -> torch.Tensor:
        """Sums over the labels of *part*, as in ``evaluation_sums``."""
        outputs: list[Any] = []
        with module.register_forward_hook(lambda _module, _inputs, output: outputs.append(output)):
            self._loss(module, part)
        output = outputs[-1] if outputs else None
        # a model with a loss of its own returns that beside the logits
        logits, labels = output[0] if isinstance(output, tuple) else output, part["labels"]
        if not isinstance(logits, torch.Tensor) or logits.shape[:-1] != labels.shape:
            found = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
            raise UnsupportedCase(
                f"the model returns {found}, not logits for labels of shape {tuple(labels.shape)}"
            )
        return evaluation_sums(logits.flatten(0, -2), labels.flatten()).cpu()


def evaluation_sums(logits: torch.Tensor, labels: torch.Tensor, max_logits: int = MAX_LOGITS) -> torch.Tensor:
    """Cross-entropy in nats, correct predictions and their number, summed over *labels* in fp64.

    Args:
        logits: (labels, classes), of any floating dtype
        labels: (labels,), the correct class of each, or IGNORE_INDEX, which counts in none of the sums
        max_logits: logits that are converted to fp64 together
    """
    sums = logits.new_zeros(3, dtype=torch.float64)
    rows = max(1, max_logits // logits.shape[-1])
    for part, right in zip(logits.split(rows), labels.split(rows), strict=True):
        exact = part.double()
        sums[0] += functional.cross_entropy(exact, right, reduction="sum")
        sums[1] += (exact.argmax(-1) == right).sum()
    sums[2] = count_labels(labels)
    return sums
