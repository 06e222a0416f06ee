"""Memory by kind at the phases of one step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distbench.core.case import MODEL_STATES
from distbench.metrics.base import NotAvailable, PassContext
from distbench.metrics.memory.allocators import AllocatorStats, missing_library_reason
from distbench.metrics.memory.peak import PeakRecorder
from distbench.metrics.profile.pipeline import stage_of
from distbench.strategies.engine import MEMORY_KINDS

_PHASES = {"forward": "forward", "backward": "backward", "optimizer": "step"}


class MemoryPhases:
    """Record a row at the end of each phase: allocated bytes, in total and by kind.

    If parameters are updated inside the backward pass, gradients come and go in it: of the moments before an
    update, one with the most gradients also has a row, ``update``.

    The kinds add up to ``allocated + host`` exactly. ``other`` is what no kind explained when the step
    began; ``activations`` is what the step has added to that: its inputs, logits, what autograd
    saved, and casts and temporaries that still exist.
    """

    def __init__(self, context: PassContext, books: AllocatorStats | None) -> None:
        self._context, self._allocator = context, books
        self._unexplained = 0
        self._steps = 0
        self._micro_batch = -1
        self._stage: int | None = None
        self._span = ""
        self._update: dict[str, Any] = {}
        self._peak: PeakRecorder | None = None
        self.rows: list[dict[str, Any]] = []

    @contextmanager
    def around(self, span: str) -> Iterator[None]:
        """Observe one part of a step; if several steps are counted, only of the first."""
        self._steps += span == "data"
        if self._steps > 1:
            yield
            return
        if self._span == "backward" and span == "optimizer":
            self._before_update()
            yield
            return
        self._span = span
        if span == "data":
            self._unexplained = self._snapshot().get("rest", 0)
        self._micro_batch += span == "forward"
        if span not in _PHASES:
            self._stage = stage_of(span)
        if self._allocator:
            self._allocator.reset_peak()
        with self._observe(span):
            yield
        self._span = ""
        if span in _PHASES:
            self.rows += [self._update] if self._update else []
            self._update = {}
            self.end_phase(_PHASES[span])
        else:
            self._stage = None

    @contextmanager
    def _observe(self, span: str) -> Iterator[None]:
        """Follow the tensors that *span* makes, unless it is a part of one that is followed."""
        if self._allocator is None or span not in _PHASES:
            yield
            return
        if self._peak is None:
            self._peak = PeakRecorder(self._allocator, self._context.device)
        with self._peak.observe(_PHASES[span]):
            yield

    def peak_holders(self) -> list[dict[str, Any]]:
        """Rows of the table ``memory_peak_holders``."""
        return self._peak.rows(self.rows) if self._peak else []

    def end_phase(self, phase: str) -> None:
        """Add the row of *phase*, which ends now."""
        self.rows.append(self._row(phase))

    def _before_update(self) -> None:
        row = self._row("update")
        if row.get("gradients", 0) > self._update.get("gradients", 0):
            self._update = row

    def _row(self, phase: str) -> dict[str, Any]:
        row = self._snapshot()
        if "rest" in row:
            row["activations"] = max(row["rest"] - self._unexplained, 0)
            row["other"] = row.pop("rest") - row["activations"]
        stage = {} if self._stage is None else {"stage": self._stage}
        return {"phase": phase, "micro_batch": max(self._micro_batch, 0), **stage, **row}

    def most(self, name: str) -> float | NotAvailable:
        """Maximum of *name* over the ends of all phases, or the reason why no row has it."""
        sizes = [row[name] for row in self.rows if name in row]
        if sizes:
            return float(max(sizes))
        if name not in MEMORY_KINDS and any("states" in row for row in self.rows):
            return NotAvailable(missing_library_reason())
        return NotAvailable("the engine does not report its memory by kind")

    def _snapshot(self) -> dict[str, int]:
        """Bytes allocated now; ``rest`` belongs to no known kind."""
        row = {}
        if self._allocator:
            row = {"allocated": self._allocator.allocated(), "peak": self._allocator.peak()}
        if (kinds := self._context.engine.memory_by_kind()) is None:
            return row
        row |= {**kinds, "states": sum(kinds[name] for name in MODEL_STATES)}
        if self._allocator:
            known = sum(size for name, size in kinds.items() if name != "host")
            row["rest"] = row["allocated"] + row["host"] - known
        return row
