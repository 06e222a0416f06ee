"""Engines whose training can't be resumed exactly."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from distbench.strategies.engine import Engine, FullState


class Unsaved(Engine):
    """An engine of which no checkpoint has all that it goes on from."""

    @property
    @abstractmethod
    def no_checkpoint(self) -> str:
        """Why there is none."""

    def save(self, folder: Path) -> None:
        raise NotImplementedError(self.no_checkpoint)

    def load(self, folder: Path) -> None:
        raise NotImplementedError(self.no_checkpoint)

    def consolidate(self) -> FullState:
        raise NotImplementedError(self.no_checkpoint)

    def load_full(self, state: FullState) -> None:
        raise NotImplementedError(self.no_checkpoint)
