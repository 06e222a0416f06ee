"""The batch in a suite, and how it is divided at a world size."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from distbench.core.bounds import Bound
from distbench.core.case import Batch
from distbench.core.suite_mistakes import Problem
from distbench.core.units import nearest_multiples

_Count = Annotated[int, Bound(1)]


@dataclass(frozen=True)
class BatchConfig:
    """The batch as given in a suite; missing fields are derived."""

    global_batch_size: _Count | None = None
    """Samples per optimizer step over all devices, however many there are: strong scaling. Give this or
    per_device_batch_size."""
    per_device_batch_size: _Count | None = None
    """Samples per optimizer step and device: weak scaling. Give this or global_batch_size."""
    micro_batch_size: _Count | None = None
    """Samples per forward and backward pass of a device; by default those of the device, divided by
    gradient_accumulation_steps."""
    gradient_accumulation_steps: _Count | None = None
    """Forward and backward passes per optimizer step; by default 1, or derived from micro_batch_size."""
    lr_scaling: Literal["none", "sqrt", "linear"] = "none"
    """How optimizer.lr scales with the global batch: not at all, with its square root (usual for Adam:
    Malladi et al. 2022, arXiv 2205.10287), or linearly (SGD: Goyal et al. 2017, arXiv 1706.02677)."""
    lr_batch_size: _Count | None = None
    """Global batch size for which optimizer.lr was chosen; required for lr_scaling."""

    def problems(self) -> list[Problem]:
        """Mistakes that do not depend on the world size."""
        if (self.global_batch_size is None) == (self.per_device_batch_size is None):
            message = (
                "give exactly one of global_batch_size (strong scaling) and "
                "per_device_batch_size (weak scaling); null removes one"
            )
            return [
                Problem(("batch",), message, combined_fields=("global_batch_size", "per_device_batch_size"))
            ]
        if self.lr_scaling == "none" or self.lr_batch_size is not None:
            return []
        needs = (
            f"lr_scaling: {self.lr_scaling} needs lr_batch_size, the batch size for which optimizer.lr was "
            "chosen"
        )
        return [Problem(("batch",), needs, combined_fields=("lr_scaling", "lr_batch_size"))]

    def learning_rate(self, lr: float, global_batch_size: int) -> float:
        """Learning rate at *global_batch_size*, given the suite's *lr*."""
        if self.lr_scaling == "none" or self.lr_batch_size is None:
            return lr
        ratio = global_batch_size / self.lr_batch_size
        return lr * (math.sqrt(ratio) if self.lr_scaling == "sqrt" else ratio)

    def divide(self, world_size: int, data_ranks: int | None = None) -> Batch:
        """Divide the batch at *world_size*, where *data_ranks* (None: all) have rows of their own.

        Raises:
            IndivisibleBatchError: the samples can't be divided evenly.
        """
        ranks = data_ranks or world_size
        share = self._rank_share(world_size, ranks)
        return Batch(share.samples * ranks, *self._micro_batches(share))

    def _rank_share(self, world_size: int, ranks: int) -> "_RankShare":
        """Each data-parallel rank's share of the batch, for *ranks* of *world_size*."""
        if self.per_device_batch_size is not None:
            size, sharing = self.per_device_batch_size, world_size // ranks
            verb = "is" if sharing == 1 else f"x {sharing} devices per data-parallel rank is"
            fitting = self._divisible_sizes(size, 1, sharing)
            return _RankShare("per_device_batch_size", size, size * sharing, fitting, verb)
        assert self.global_batch_size is not None
        size, fitting = self.global_batch_size, self._divisible_sizes(self.global_batch_size, ranks, 1)
        who = "world size" if ranks == world_size else "data-parallel ranks"
        if size % ranks:
            number = f"{who} {ranks}" if ranks == world_size else f"{ranks} {who}"
            raise IndivisibleBatchError(
                "global_batch_size", size, f"is not divisible by {number}; use {fitting}"
            )
        return _RankShare("global_batch_size", size, size // ranks, fitting, "is", f"{who} x ", f"{ranks} x ")

    def _divisible_sizes(self, size: int, ranks: int, sharing: int) -> str:
        """Sizes next to *size* that could be divided over *ranks*, or shared by *sharing* devices."""
        micro, steps = self.micro_batch_size, self.gradient_accumulation_steps
        samples = (micro or 1) * (steps or 1)
        unit = ranks * samples // math.gcd(samples, sharing)
        if micro is None or steps is None:
            return nearest_multiples(unit, size)
        return "" if samples % sharing else str(unit)

    def _micro_batches(self, share: "_RankShare") -> tuple[int, int]:
        """Samples and number of the micro-batches of *share*."""
        micro, steps = self.micro_batch_size, self.gradient_accumulation_steps
        if micro is None:
            micro = share.divide_by(steps or 1, "gradient_accumulation_steps")
        elif steps is None:
            steps = share.divide_by(micro, "micro_batch_size")
        steps = steps or 1
        if micro * steps != share.samples:
            instead = f"use {share.divisible_sizes}, or " if share.divisible_sizes else ""
            raise share.error(
                f"not {share.names}micro_batch_size x gradient_accumulation_steps = "
                f"{share.numbers}{micro} x {steps}; {instead}remove one of them to have it derived"
            )
        return micro, steps

    def undivided(self, world_size: int) -> Batch:
        """The batch of a case that can't run because its batch can't be divided."""
        size = self.global_batch_size or (self.per_device_batch_size or 0) * world_size
        return Batch(size, self.micro_batch_size or 1, self.gradient_accumulation_steps or 1)


@dataclass(frozen=True)
class _RankShare:
    """The samples of a rank in a step, and words for their origin."""

    field: str
    size: int
    """Value of *field*."""
    samples: int
    divisible_sizes: str
    """The nearest sizes that can be divided, in words."""
    verb: str
    names: str = ""
    numbers: str = ""

    def divide_by(self, by: int, name: str) -> int:
        """Divide the samples *by* the number called *name*."""
        if self.samples % by:
            factors = f"{self.names}{name} = {self.numbers}{by}"
            raise self.error(f"not divisible by {factors}; use {self.divisible_sizes}")
        return self.samples // by

    def error(self, why: str) -> "IndivisibleBatchError":
        """Error that the samples can't be divided, with the reason *why*."""
        return IndivisibleBatchError(self.field, self.size, f"{self.verb} {why}")


class IndivisibleBatchError(Exception):
    """The samples of a batch can't be divided evenly."""

    def __init__(self, field: str, size: int, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.size = size

    @property
    def reason(self) -> str:
        """The message with the field and its value."""
        return f"batch.{self.field} = {self.size} {self}"
