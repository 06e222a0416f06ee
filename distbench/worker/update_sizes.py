"""Weighted parameter updates, in which rounding cannot flip the sign of an element.

Adam's first update of an element is its learning rate times the sign of its gradient, whatever the gradient's
size. If a gradient is within rounding of zero, that sign is random, and one random sign in a small tensor
deviates as much as any mistake.
"""

import itertools
from collections.abc import Iterator

import torch

from distbench.worker.sketch import tensor_chunks


class WeightedUpdates:
    """Parameter updates since the start of a training, each element weighted by its certainty.

    Adam divides a gradient by the root of its mean square, v, so an error d of the gradient changes an
    element by about lr d / v in that step. Rounding errors scale with the tensor's gradients, whose root
    mean square is r. The weight is ``1 / (1 + r / v)`` in the step in which it was smallest: multiplied by
    it, the error of an update has the same size for all elements. It is nearly 1 where gradients are large,
    nearly 0 where a sign came out of noise, and 1 where there was no gradient at all: such an element
    changes by decay alone, which has no sign to flip.

    A gradient that is 0 between two that are not is a sum that cancelled to the last bit, as one in a
    million does: with other rounding it is nearly zero, so such an element has the weight 0. In rows of an
    embedding that no batch has used, zeros are adjacent. The weight of an input that was 0 in every row,
    such as a dead unit, cannot be distinguished from such a sum, so its updates are not seen.
    """

    def __init__(self) -> None:
        self._start: dict[str, torch.Tensor] = {}
        """Parameters before the first step."""
        self._steps = 0
        self._squares: dict[str, torch.Tensor] = {}
        """Sums of squared gradients."""
        self._noise_ratios: dict[str, torch.Tensor] = {}
        """Largest r / v so far; infinite where a gradient cancelled."""

    def record_start(self, name: str, parameter: torch.Tensor) -> None:
        """Copy the *parameter* called *name* before its first update, on its device."""
        self._start[name] = parameter.detach().clone()

    def next_step(self) -> None:
        """Begin the next step, to which the following gradients belong."""
        self._steps += 1

    def add_gradient(self, name: str, gradient: torch.Tensor) -> None:
        """Add the *gradient* of the parameter *name*; a parameter without one keeps its weight."""
        if name not in self._squares:
            self._squares[name] = torch.zeros_like(gradient, dtype=torch.float32).contiguous()
            self._noise_ratios[name] = torch.zeros_like(self._squares[name])
        self._update_noise_ratios(name, self._add_squares(name, gradient))

    def weighted_chunks(self, name: str, parameter: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield chunks of the weighted update of *name*, in the dtype of *parameter*, its current value.

        In fp32 the difference of two numbers that are within a factor of two of each other is exact (Sterbenz
        1974), and that of others is as exact as the parameter itself.
        """
        doubts = self._noise_ratios.get(name)
        beside = itertools.repeat(None) if doubts is None else tensor_chunks(doubts)
        for after, before, doubt in zip(
            tensor_chunks(parameter), tensor_chunks(self._start[name]), beside, strict=False
        ):
            moved = after - before.to(after.dtype)
            yield moved if doubt is None else moved.div_(doubt + 1)

    def _add_squares(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Add the squares of *gradient*; return their mean (), in fp64."""
        sums = []
        for part, squares in zip(tensor_chunks(gradient), tensor_chunks(self._squares[name]), strict=True):
            # an element that overflowed contributes nothing
            squared = part.float().square().nan_to_num_(nan=0.0, posinf=0.0)
            squares += squared
            sums.append(squared.sum(dtype=torch.float64))
        return (sums[0] if len(sums) == 1 else torch.stack(sums).sum()) / gradient.numel()

    def _update_noise_ratios(self, name: str, mean: torch.Tensor) -> None:
        square = (mean * self._steps).float()
        for squares, doubts in zip(
            tensor_chunks(self._squares[name]), tensor_chunks(self._noise_ratios[name]), strict=True
        ):
            doubt = (square / squares).sqrt_()
            none = squares == 0
            doubt.masked_fill_(none & ~_isolated(none), 0.0)
            torch.maximum(doubts, doubt.nan_to_num_(nan=0.0, posinf=torch.inf), out=doubts)


def _isolated(is_zero: torch.Tensor) -> torch.Tensor:
    """Mask (n,) of the elements in *is_zero* (n,) between two that are not zero."""
    alone = is_zero.clone()
    alone[1:] &= ~is_zero[:-1]
    alone[:-1] &= ~is_zero[1:]
    alone[:1] = alone[-1:] = False
    return alone
