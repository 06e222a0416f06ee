"""The ``span`` of an engine: the same object in every pass, so that a strategy can't tell which pass runs."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from distbench.strategies.engine import Engine, SpanMarker


class SpanDispatcher:
    """Context manager around each part of a step, the same object in every pass of an engine."""

    def __init__(self) -> None:
        self.target: SpanMarker = nullcontext
        """What is done around a part, by its name."""

    def __call__(self, name: str) -> AbstractContextManager[Any]:
        """Context around the part *name*."""
        return self.target(name)

    @classmethod
    def install(cls, engine: Engine) -> "SpanDispatcher":
        """New spans, which *engine* has from now on."""
        spans = engine.span = cls()
        return spans
