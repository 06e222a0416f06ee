"""The batch in a suite, and how it is divided at a world size."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from distbench.core.bounds import Bound
from distbench.core.case import Batch
from distbench.core.suite_mistakes import SuiteMistake
from distbench.core.units import multiples_text

_Count = Annotated[int, Bound(1)]


@dataclass(frozen=True)
class BatchSpec:
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
    """Forward and backward passes per optimizer step; by default 1, or what micro_batch_size makes of it."""
    lr_scaling: Literal["none", "sqrt", "linear"] = "none"
    """How optimizer.lr scales with the global batch: not at all, with its square root (usual for Adam:
    Malladi et al. 2022, arXiv 2205.10287), or linearly (SGD: Goyal et al. 2017, arXiv 1706.02677)."""
    lr_batch_size: _Count | None = None
    """Global batch size that optimizer.lr is meant for; required for lr_scaling."""

    def problems(self) -> list[SuiteMistake]:
        """Mistakes that apply at every world size."""
        if (self.global_batch_size is None) == (self.per_device_batch_size is None):
            message = (
                "give exactly one of global_batch_size (strong scaling) and "
                "per_device_batch_size (weak scaling); null removes one"
            )
            return [
                SuiteMistake(("batch",), message, combined=("global_batch_size", "per_device_batch_size"))
            ]
        if self.lr_scaling == "none" or self.lr_batch_size is not None:
            return []
        needs = f"lr_scaling: {self.lr_scaling} needs lr_batch_size, the batch size optimizer.lr is meant for"
        return [SuiteMistake(("batch",), needs, combined=("lr_scaling", "lr_batch_size"))]

    def learning_rate(self, lr: float, global_batch_size: int) -> float:
        """Learning rate at *global_batch_size*, given the suite's *lr*."""
        if self.lr_scaling == "none" or self.lr_batch_size is None:
            return lr
        ratio = global_batch_size / self.lr_batch_size
        return lr * (math.sqrt(ratio) if self.lr_scaling == "sqrt" else ratio)

    def at(self, world_size: int, data_ranks: int | None = None) -> Batch:
        """The batch at *world_size*, where *data_ranks* (None: all) have rows of their own.

        Raises:
            Indivisible: the samples can't be divided evenly.
        """
        ranks = data_ranks or world_size
        share = self._share(world_size, ranks)
        return Batch(share.samples * ranks, *self._cut(share))

    def _share(self, world_size: int, ranks: int) -> "_Share":
        """Each data-parallel rank's part of the batch, for that many *ranks* of *world_size*."""
        if self.per_device_batch_size is not None:
            size, sharing = self.per_device_batch_size, world_size // ranks
            verb = "is" if sharing == 1 else f"x {sharing} devices that share samples is"
            fitting = self._fitting(size, 1, sharing)
            return _Share("per_device_batch_size", size, size * sharing, fitting, verb)
        assert self.global_batch_size is not None
        size, fitting = self.global_batch_size, self._fitting(self.global_batch_size, ranks, 1)
        who = "world size" if ranks == world_size else "data-parallel ranks"
        if size % ranks:
            number = f"{who} {ranks}" if ranks == world_size else f"{ranks} {who}"
            raise Indivisible("global_batch_size", size, f"is not divisible by {number}; use {fitting}")
        return _Share("global_batch_size", size, size // ranks, fitting, "is", f"{who} x ", f"{ranks} x ")

    def _fitting(self, size: int, ranks: int, sharing: int) -> str:
        """The sizes next to *size* that could be divided over *ranks*, or shared by *sharing* devices."""
        micro, steps = self.micro_batch_size, self.gradient_accumulation_steps
        samples = (micro or 1) * (steps or 1)
        unit = ranks * samples // math.gcd(samples, sharing)
        if micro is None or steps is None:
            return multiples_text(unit, size)
        return "" if samples % sharing else str(unit)

    def _cut(self, share: "_Share") -> tuple[int, int]:
        """Samples and number of the micro-batches of *share*."""
        micro, steps = self.micro_batch_size, self.gradient_accumulation_steps
        if micro is None:
            micro = share.divided(steps or 1, "gradient_accumulation_steps")
        elif steps is None:
            steps = share.divided(micro, "micro_batch_size")
        steps = steps or 1
        if micro * steps != share.samples:
            instead = f"use {share.fitting}, or " if share.fitting else ""
            raise share.indivisible(
                f"not {share.names}micro_batch_size x gradient_accumulation_steps = "
                f"{share.numbers}{micro} x {steps}; {instead}leave one of them out to have it derived"
            )
        return micro, steps

    def as_asked(self, world_size: int) -> Batch:
        """The batch of a case that can't run because its batch can't be divided."""
        size = self.global_batch_size or (self.per_device_batch_size or 0) * world_size
        return Batch(size, self.micro_batch_size or 1, self.gradient_accumulation_steps or 1)


@dataclass(frozen=True)
class _Share:
    """The samples of a rank in a step, and words for what they are of."""

    field: str
    size: int
    """Value of *field*."""
    samples: int
    fitting: str
    """The nearest sizes that can be divided, in words."""
    verb: str
    names: str = ""
    numbers: str = ""

    def divided(self, by: int, name: str) -> int:
        """The samples divided *by* what is called *name*."""
        if self.samples % by:
            factors = f"{self.names}{name} = {self.numbers}{by}"
            raise self.indivisible(f"not divisible by {factors}; use {self.fitting}")
        return self.samples // by

    def indivisible(self, why: str) -> "Indivisible":
        """The samples can't be divided, and *why*."""
        return Indivisible(self.field, self.size, f"{self.verb} {why}")


class Indivisible(Exception):
    """The samples of a batch can't be divided evenly."""

    def __init__(self, field: str, size: int, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.size = size

    @property
    def reason(self) -> str:
        """The message with the field and its value."""
        return f"batch.{self.field} = {self.size} {self}"
