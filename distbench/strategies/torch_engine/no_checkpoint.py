"""Engines whose training can't be resumed exactly."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from distbench.strategies.engine import Engine, TrainingState


class NoCheckpoints(Engine):
    """An engine whose state no checkpoint can contain in full."""

    @property
    @abstractmethod
    def checkpoint_problem(self) -> str:
        """Reason why it has no checkpoint."""

    def save_sharded(self, folder: Path) -> None:
        raise NotImplementedError(self.checkpoint_problem)

    def load_sharded(self, folder: Path) -> None:
        raise NotImplementedError(self.checkpoint_problem)

    def gather_state(self) -> TrainingState:
        raise NotImplementedError(self.checkpoint_problem)

    def scatter_state(self, state: TrainingState) -> None:
        raise NotImplementedError(self.checkpoint_problem)
