"""How far a training has moved its parameters, told so that rounding can't flip what is told.

Adam's first update of an element is its learning rate times the sign of its gradient, whatever the gradient's
size. Where a gradient is within rounding of zero that sign is a coin, and one coin in a small tensor is as
far as any mistake.
"""

import itertools
from collections.abc import Iterator

import torch

from distbench.worker.sketch import tensor_chunks


class WeightedUpdates:
    """Moves of a training's parameters since its start, each element weighted by how surely it moves.

    Adam divides a gradient by the root of its mean square, v, so that an error d of the gradient moves an
    element by about lr d / v in that step. Errors of rounding are of the size of the tensor's gradients,
    whose root mean square is r. The weight is ``1 / (1 + r / v)`` in the step where that was least: times
    it, the error of a move has one size for all elements. It is nearly 1 where gradients are large,
    nearly 0 where one was a sign out of nothing, and 1 where there was none at all: such an element moves
    by decay alone, which has no sign to flip.

    A gradient that is 0 between two that are not is a sum that cancelled to the last bit, as one in a
    million does: in another training it is within rounding of zero, and so such an element has the weight 0.
    In rows of an embedding that no batch has used zeros stand side by side. What multiplies an input that
    was 0 in every row, such as a dead unit, is not told from that, so its moves are not seen.
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
        """Copy the *parameter* called *name*, which has not moved yet, where it is."""
        self._start[name] = parameter.detach().clone()

    def next_step(self) -> None:
        """The gradients that are seen from now on are those of the next step."""
        self._steps += 1

    def add_gradient(self, name: str, gradient: torch.Tensor) -> None:
        """Take over the *gradient* of the parameter *name*; one that has none keeps its weight."""
        if name not in self._squares:
            self._squares[name] = torch.zeros_like(gradient, dtype=torch.float32).contiguous()
            self._noise_ratios[name] = torch.zeros_like(self._squares[name])
        self._update_noise_ratios(name, self._add_squares(name, gradient))

    def weighted_chunks(self, name: str, parameter: torch.Tensor) -> Iterator[torch.Tensor]:
        """Parts of the weighted move of the parameter *name*, in the dtype of *parameter*, its value now.

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
        """Add the squares of *gradient*; their mean (), in fp64."""
        sums = []
        for part, squares in zip(tensor_chunks(gradient), tensor_chunks(self._squares[name]), strict=True):
            # one that overflowed decides nothing
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
    """Which of the elements that are *is_zero* (n,) are so between two that are not."""
    alone = is_zero.clone()
    alone[1:] &= ~is_zero[:-1]
    alone[:-1] &= ~is_zero[1:]
    alone[:1] = alone[-1:] = False
    return alone
