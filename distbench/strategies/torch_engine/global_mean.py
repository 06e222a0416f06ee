"""Mean of a loss over the labels of a global batch, for a loss that is a sum and a count."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch._guards import active_fake_mode

from distbench.strategies.base import Batch, RankContext
from distbench.strategies.torch_engine import loss_errors
from distbench.workloads.base import Loss, at_least_fp32


class GlobalMean:
    """Loss of a micro-batch, whose mean over micro-batches and data ranks is that of the global batch.

    A loss that is a mean is unchanged. A sum is divided by the count of the global batch and multiplied by
    the number of parts that engines take the mean over, so that their mean is the sum over that count.
    """

    def __init__(
        self, context: RankContext, *, chunks: int = 1, groups: Sequence[dist.ProcessGroup] | None = None
    ) -> None:
        """Prepare for the steps that ``context.step`` announces.

        Args:
            chunks: Number of parts into which a pipeline splits each micro-batch, each with its own loss.
            groups: Groups over which counts are summed, one after another, if not all ranks compute a loss.
        """
        self._workload, self._step = context.workload, context.step
        self._data_ranks = context.data_parallel_size
        self._chunks, self.groups = chunks, groups
        # all ranks that share samples count the same labels
        self._ranks_per_sample = context.world_size // context.data_parallel_size

    @property
    def weighs_labels(self) -> bool:
        """True if a mean over the labels of a part counts by their number."""
        return self._step.weighs_labels

    def __call__(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        """Loss of *batch*; a collective call once per step if the loss is a sum and a count.

        Raises:
            UnsupportedCase: the loss function uses parts of the module that exist only inside its call.
        """
        try:
            loss = self._workload.loss(module, batch)
        except Exception as error:
            # user code may raise anything for this reason
            if reason := loss_errors.explain_error(error, module):
                raise reason from error
            raise
        return self.normalize(loss, batch)

    def normalize(self, loss: Loss, batch: Batch) -> torch.Tensor:
        """Normalize a *loss* that the workload has computed for *batch*.

        Raises:
            ValueError: its count differs from that of the workload before the forward pass.
        """
        if isinstance(loss, torch.Tensor) and self.weighs_labels:
            count = self._workload.loss_denominator(batch)
            loss = loss * count, count
        if isinstance(loss, torch.Tensor):
            self._step.batches.clear()
            return loss
        total, count = loss
        factor = self._factor()
        if active_fake_mode() is None and (count.device.type == "cpu" or self._step.is_first):
            # on a GPU the host would wait for the count of each micro-batch; a fake one has no value
            self._check_count(int(count), int(self._workload.loss_denominator(batch)))
        total = at_least_fp32(total)
        return total * factor.to(total.device, total.dtype)

    def _factor(self) -> torch.Tensor:
        """Number of parts that engines take the mean over, per label of the global batch."""
        step = self._step
        if step.batches:
            counts = [self._workload.loss_denominator(batch) for batch in step.batches]
            parts = len(counts) * self._chunks * self._data_ranks
            step.factor, step.has_counts = parts / self._sum_over_ranks(torch.stack(counts).sum()), True
            step.batches.clear()
        assert step.factor is not None, "a feed announces each step"
        return step.factor

    def _sum_over_ranks(self, own: torch.Tensor) -> torch.Tensor:
        if self._data_ranks == 1:
            return own.double()
        if self._step.is_without_communication:
            return own.double() * self._data_ranks
        if self.groups is None:
            dist.all_reduce(own)
            return own.double() / self._ranks_per_sample
        for group in self.groups:
            dist.all_reduce(own, group=group)
        return own.double()

    def _check_count(self, found: int, expected: int) -> None:
        if found != expected:
            raise ValueError(
                f"the loss of a micro-batch counts {found}, but Workload.loss_denominator returned "
                f"{expected} before the forward pass (by default the labels that are not -100). All "
                "ranks need the count of the global batch before their first backward pass, so return "
                "the same count there (workload user: count_function)"
            )
