"""``span`` of an engine: the same object in every pass, so a strategy can't detect which pass runs."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from distbench.strategies.engine import Engine, SpanMarker


class SpanDispatcher:
    """Context manager around each part of a step, the same object in every pass of an engine."""

    def __init__(self) -> None:
        self.target: SpanMarker = nullcontext
        """Function from the name of a part to the context around it."""

    def __call__(self, name: str) -> AbstractContextManager[Any]:
        """Context around the part *name*."""
        return self.target(name)

    @classmethod
    def install(cls, engine: Engine) -> "SpanDispatcher":
        """Install new spans in *engine*, and return them."""
        spans = engine.span = cls()
        return spans
