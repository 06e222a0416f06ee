"""The instructions of DeepSpeed's pipeline: marked as parts of a step, and all but the last run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deepspeed.runtime.pipe import schedule

from distbench.strategies.engine import SpanMarker


class PipelineInstructions:
    """Stands between the schedule of an engine and what carries out its instructions.

    ``train_batch`` runs a whole step; its update is left to who asks for it: gradients are looked at before.
    """

    def __init__(self, engine: Any, span: SpanMarker) -> None:
        """Take over the instructions of *engine*; *span* marks a part of a step."""
        self.max_in_flight = 0
        """Micro-batches that went forward and not yet back, at most."""
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
        """Count micro-batches from 0 on."""
        self._counts = {"F": 0, "B": 0}

    def _timed_pass(self, kind: str, part: str, execute: Callable[..., None]) -> Callable[..., None]:
        """A pass that bears torch's name of it: ``1F2`` is stage 1, forward, micro-batch 2."""

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
