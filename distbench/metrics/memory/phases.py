"""Memory by kind at the phases of one step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distbench.core.case import MODEL_STATES
from distbench.metrics.base import Absent, Session
from distbench.metrics.memory.allocators import Books, why_not
from distbench.metrics.profile.pipeline import stage_of

_PHASES = {"forward": "forward", "backward": "backward", "optimizer": "step"}


class Phases:
    """Takes a row at the end of each phase: what is allocated, and by kind what it is.

    Where parameters are updated inside of the backward pass, gradients come and go in it: of the moments
    before an update one with the most gradients has a row too, ``update``.

    The kinds add up to ``allocated + host`` exactly. ``other`` is what no kind explained when the step
    began; ``activations`` is what the step has added to that: its inputs, logits, what autograd
    saved, and casts and temporaries that still exist.
    """

    def __init__(self, session: Session, books: Books | None) -> None:
        self._session, self._books = session, books
        self._unexplained = 0
        self._steps = 0
        self._micro_batch = -1
        self._stage: int | None = None
        self._within = ""
        self._update: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []

    @contextmanager
    def around(self, span: str) -> Iterator[None]:
        """Watch one part of a step; where several are counted, of the first alone."""
        self._steps += span == "data"
        if self._steps > 1:
            yield
            return
        if self._within == "backward" and span == "optimizer":
            self._before_update()
            yield
            return
        self._within = span
        if span == "data":
            self._unexplained = self._look().get("rest", 0)
        self._micro_batch += span == "forward"
        if span not in _PHASES:
            self._stage = stage_of(span)
        if self._books:
            self._books.reset_peak()
        yield
        self._within = ""
        if span in _PHASES:
            self.rows += [self._update] if self._update else []
            self._update = {}
            self.end(_PHASES[span])
        else:
            self._stage = None

    def end(self, phase: str) -> None:
        """Take the row of *phase*, which ends now."""
        self.rows.append(self._row(phase))

    def _before_update(self) -> None:
        row = self._row("update")
        if row.get("gradients", 0) > self._update.get("gradients", 0):
            self._update = row

    def _row(self, phase: str) -> dict[str, Any]:
        row = self._look()
        if "rest" in row:
            row["activations"] = max(row["rest"] - self._unexplained, 0)
            row["other"] = row.pop("rest") - row["activations"]
        stage = {} if self._stage is None else {"stage": self._stage}
        return {"phase": phase, "micro_batch": max(self._micro_batch, 0), **stage, **row}

    def most(self, name: str) -> float | Absent:
        """Maximum of *name* over the ends of all phases, or why no row has it."""
        sizes = [row[name] for row in self.rows if name in row]
        if sizes:
            return float(max(sizes))
        if any("states" in row for row in self.rows):
            return Absent(why_not())
        return Absent("the engine does not report its memory by kind")

    def _look(self) -> dict[str, int]:
        """Bytes allocated now; ``rest`` is what is of no known kind."""
        row = {}
        if self._books:
            row = {"allocated": self._books.allocated(), "peak": self._books.peak()}
        if (kinds := self._session.engine.memory()) is None:
            return row
        row |= {**kinds, "states": sum(kinds[name] for name in MODEL_STATES)}
        if self._books:
            known = sum(size for name, size in kinds.items() if name != "host")
            row["rest"] = row["allocated"] + row["host"] - known
        return row
