"""How far a training has moved its parameters, told so that rounding can't flip what is told.

Adam's first update of an element is its learning rate times the sign of its gradient, whatever the gradient's
size. Where a gradient is within rounding of zero that sign is a coin, and one coin in a small tensor is as
far as any mistake.
"""

from collections.abc import Mapping

import torch


class Moves:
    """Moves of a training's parameters since its start, each element weighted by how surely it moves.

    Adam divides a gradient by the root of its mean square, v, so that an error d of the gradient moves an
    element by about lr d / v in that step. Errors of rounding are of the size of the tensor's gradients,
    whose root mean square is r. The weight is ``1 / (1 + r / v)`` in the step where that was least: times
    it, the error of a move has one size for all elements. It is nearly 1 where gradients are large,
    nearly 0 where one was a sign out of nothing, and 1 where there was none at all: such an element moves
    by decay alone, which has no sign to flip.
    """

    def __init__(self, start: Mapping[str, torch.Tensor]) -> None:
        """*start* has the parameters before the first step, by name."""
        self._start = start
        self._steps = 0
        self._squares: dict[str, torch.Tensor] = {}
        """Sums of squared gradients."""
        self._doubts: dict[str, torch.Tensor] = {}
        """Largest r / v so far."""

    def see(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Take over the *gradients* of the next step; a parameter that has none keeps its weight."""
        self._steps += 1
        for name, gradient in gradients.items():
            squared = gradient.detach().cpu().float().square()
            # one that overflowed decides nothing
            squared.nan_to_num_(nan=0.0, posinf=0.0)
            if name not in self._squares:
                self._squares[name] = torch.zeros_like(squared)
                self._doubts[name] = torch.zeros_like(squared)
            self._squares[name] += squared
            doubt = (squared.mean() * self._steps / self._squares[name]).sqrt_()
            doubt.nan_to_num_(nan=0.0, posinf=0.0)
            self._doubts[name] = torch.maximum(self._doubts[name], doubt)

    def of(self, name: str, now: torch.Tensor) -> torch.Tensor:
        """Weighted move, in fp64, of the parameter *name* that is *now* so."""
        moved = now.detach().cpu().double() - self._start[name].double()
        doubts = self._doubts.get(name)
        return moved if doubts is None else moved / (1 + doubts)
