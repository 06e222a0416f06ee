"""Decide which update ends a step of a script: several optimizers may train, and each several times."""

from __future__ import annotations

from collections import Counter

_SETTLING_UPDATES = 8
"""Updates of the most frequent optimizer after which that of a step is chosen; of several optimizers. A GAN
(WGAN, Arjovsky et al. 2017, arXiv:1701.07875) updates its critic five times per update of the generator."""


class StepBoundary:
    """The optimizer whose update ends a step: the one that updates least often, and of these the last."""

    def __init__(self, optimizers: int) -> None:
        """Choose among *optimizers* optimizers of the process."""
        self._several = optimizers > 1
        self._updates: Counter[int] = Counter()
        self._passes_at: dict[int, int] = {}
        self._chosen: int | None = None

    @property
    def is_chosen(self) -> bool:
        """True once it is known whose update ends a step."""
        return self._chosen is not None

    def ends_step(self, optimizer: int, backward_passes: int) -> bool:
        """True if the update of *optimizer* (an id) after *backward_passes* passes so far ends a step.

        An engine may update groups of parameters one by one: without a backward pass in between, they are one
        update.
        """
        if backward_passes and self._passes_at.get(optimizer) == backward_passes:
            return False
        self._passes_at[optimizer] = backward_passes
        self._updates[optimizer] += 1
        if self._chosen is None and (not self._several or self._updates[optimizer] >= _SETTLING_UPDATES):
            fewest = min(self._updates.values())
            rarest = [each for each, count in self._updates.items() if count == fewest]
            # the one that has just updated ends a cycle of those that update equally often
            self._chosen = optimizer if optimizer in rarest else rarest[-1]
        return optimizer == self._chosen
