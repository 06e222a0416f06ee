"""Instructions of DeepSpeed's pipeline: mark the passes of a step, and run all but the update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deepspeed.runtime.pipe import schedule

from distbench.strategies.engine import SpanMarker


class PipelineInstructions:
    """Replaces the instructions of an engine's pipeline schedule.

    ``train_batch`` runs a full step; the caller runs its update, because gradients are read before it.
    """

    def __init__(self, engine: Any, span: SpanMarker) -> None:
        """Replace the instructions of *engine*; *span* marks a part of a step."""
        self.max_in_flight = 0
        """Maximum number of micro-batches that ran forward and not yet backward."""
        self._span, self._stage = span, engine.stage_id
        self._counts = {"F": 0, "B": 0}
        known = dict(type(engine)._INSTRUCTION_MAP)
        engine._INSTRUCTION_MAP = {
            **known,
            schedule.ForwardPass: self._timed_pass("F", "forward", known[schedule.ForwardPass]),
            schedule.BackwardPass: self._timed_pass("B", "backward", known[schedule.BackwardPass]),
            schedule.ReduceTiedGrads: self._timed_backward(known[schedule.ReduceTiedGrads]),
            schedule.ReduceGrads: self._timed_backward(known[schedule.ReduceGrads]),
            schedule.OptimizerStep: lambda _engine: None,
        }

    def reset(self) -> None:
        """Restart the micro-batch numbers at 0."""
        self._counts = {"F": 0, "B": 0}

    def _timed_pass(self, kind: str, part: str, execute: Callable[..., None]) -> Callable[..., None]:
        """Mark a pass with torch's name of it: ``1F2`` is stage 1, forward, micro-batch 2."""

        def marked(engine: Any, **arguments: Any) -> None:
            with self._span(f"{self._stage}{kind}{self._counts[kind]}"), self._span(part):
                execute(engine, **arguments)
            self._counts[kind] += 1
            self.max_in_flight = max(self.max_in_flight, self._counts["F"] - self._counts["B"])

        return marked

    def _timed_backward(self, execute: Callable[..., None]) -> Callable[..., None]:
        def marked(engine: Any) -> None:
            with self._span("backward"):
                execute(engine)

        return marked
