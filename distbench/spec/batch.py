"""How a suite says the batch, and how it is cut up at a world size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from distbench.case import Batch
from distbench.spec.checking import Bound, Finding, set_bounds


@dataclass(frozen=True)
class BatchSpec:
    """The batch as a suite gives it; what is left out is derived."""

    global_batch_size: int | None = None
    """Samples of one optimizer step over all devices, whatever their number: strong scaling."""
    per_device_batch_size: int | None = None
    """Samples of one optimizer step on each device: weak scaling."""
    micro_batch_size: int | None = None
    """Samples of one forward and backward pass of one device."""
    gradient_accumulation_steps: int | None = None
    """Forward and backward passes before each optimizer step; 1 if neither this nor micro is given."""
    lr_scaling: Literal["none", "sqrt", "linear"] = "none"
    """How optimizer.lr grows with the global batch: not at all, by its square root (usual for Adam:
    Malladi et al. 2022, arXiv 2205.10287), or linearly (SGD: Goyal et al. 2017, arXiv 1706.02677)."""
    lr_batch_size: int | None = None
    """The global batch that optimizer.lr is meant for; needed for lr_scaling."""

    def problems(self) -> list[Finding]:
        """Return what is wrong at every world size."""
        sizes = (self.global_batch_size, self.per_device_batch_size)
        if sum(size is not None for size in sizes) == 1:
            return self._scaling_problems()
        message = (
            "give exactly one of global_batch_size (strong scaling) and "
            "per_device_batch_size (weak scaling); null takes one away"
        )
        return [Finding(("batch",), message, combined=("global_batch_size", "per_device_batch_size"))]

    def learning_rate(self, lr: float, global_batch_size: int) -> float:
        """Return the learning rate at *global_batch_size* where *lr* is that of the suite."""
        if self.lr_scaling == "none" or self.lr_batch_size is None:
            return lr
        ratio = global_batch_size / self.lr_batch_size
        return lr * (math.sqrt(ratio) if self.lr_scaling == "sqrt" else ratio)

    def _scaling_problems(self) -> list[Finding]:
        if self.lr_scaling == "none" or self.lr_batch_size is not None:
            return []
        message = f"lr_scaling: {self.lr_scaling} needs lr_batch_size, the batch that optimizer.lr is for"
        return [Finding(("batch",), message, combined=("lr_scaling", "lr_batch_size"))]

    def at(self, world_size: int) -> Batch:
        """Return the batch at *world_size*.

        Raises:
            Indivisible: the samples can't be cut up evenly.
        """
        per_device = self._per_device(world_size)
        steps = self.gradient_accumulation_steps
        micro = self.micro_batch_size
        if micro is None:
            micro = _divided(self, per_device, steps or 1, world_size, "gradient_accumulation_steps")
        elif steps is None:
            steps = _divided(self, per_device, micro, world_size, "micro_batch_size")
        steps = steps or 1
        if micro * steps != per_device:
            raise Indivisible(
                self._given(),
                f"is not {self._product(world_size)}micro_batch_size x gradient_accumulation_steps = "
                f"{self._numbers(world_size)}{micro} x {steps}; leave one of them out to have it derived",
            )
        return Batch(per_device * world_size, micro, steps)

    def as_asked(self, world_size: int) -> Batch:
        """Return the batch of a case that can't be run because its batch can't be cut up."""
        size = self.global_batch_size or (self.per_device_batch_size or 0) * world_size
        return Batch(size, self.micro_batch_size or 1, self.gradient_accumulation_steps or 1)

    def _per_device(self, world_size: int) -> int:
        if self.per_device_batch_size is not None:
            return self.per_device_batch_size
        assert self.global_batch_size is not None
        if self.global_batch_size % world_size:
            raise Indivisible("global_batch_size", f"is not divisible by world size {world_size}")
        return self.global_batch_size // world_size

    def _given(self) -> str:
        return "per_device_batch_size" if self.global_batch_size is None else "global_batch_size"

    def _product(self, world_size: int) -> str:
        return "" if self.global_batch_size is None else "world size x "

    def _numbers(self, world_size: int) -> str:
        return "" if self.global_batch_size is None else f"{world_size} x "


class Indivisible(Exception):
    """The samples of a batch can't be cut up evenly."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def _divided(spec: BatchSpec, per_device: int, by: int, world_size: int, name: str) -> int:
    if per_device % by:
        where = spec._product(world_size), spec._numbers(world_size)
        raise Indivisible(spec._given(), f"is not divisible by {where[0]}{name} = {where[1]}{by}")
    return per_device // by


set_bounds(
    BatchSpec,
    dict.fromkeys(
        (
            *("global_batch_size", "per_device_batch_size", "micro_batch_size"),
            *("gradient_accumulation_steps", "lr_batch_size"),
        ),
        Bound(1),
    ),
)
