"""Sampling thread outside the ranks that reads counters periodically, at no cost to the ranks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

from distbench.metrics.base import NotAvailable, Sampler
from distbench.system import clock

Row = dict[str, Any]


class CounterSource(Protocol):
    """Source of readings: the host, the GPUs."""

    name: str
    """Name in the row that explains why it has no readings."""

    def read(self) -> list[Row]:
        """Current readings. A row with ``absent`` and ``reason`` explains why one reading is missing.

        Raises:
            NotAvailable: it has no readings, now or later.
        """

    def close(self) -> list[Row]:
        """Stop reading; return rows that are known only at the end."""


class PeriodicSampler(Sampler):
    """Read *sources* in a daemon thread every *interval_s* seconds, first at once and last at the end.

    Every row gets ``at``, the ``clock.now()`` just before its source was read. A driver that hangs does not
    block the run: after *timeout_s* the rows read so far are returned.
    """

    def __init__(self, sources: Sequence[CounterSource], interval_s: float, timeout_s: float = 5.0) -> None:
        self._sources, self._interval_s, self._timeout_s = list(sources), interval_s, timeout_s
        self._rows: list[Row] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def stop(self) -> list[Row]:
        """Take a last sample, end the thread, and return all rows."""
        self._ended.set()
        self._thread.join(self._timeout_s)
        return list(self._rows)

    def _run(self) -> None:
        self._sample()
        while not self._ended.wait(self._interval_s):
            self._sample()
        self._sample()
        for source in self._sources:
            self._read_source(source, source.close)

    def _sample(self) -> None:
        self._sources = [source for source in self._sources if self._read_source(source, source.read)]

    def _read_source(self, source: CounterSource, read: Any) -> bool:
        """Keep what *read* returns; False if *source* has no more readings."""
        now = clock.now()
        try:
            rows = read()
        except NotAvailable as reason:
            rows = [{"absent": source.name, "reason": str(reason)}]
        except Exception as error:
            # the boundary of the thread: whatever a driver's library raises, the trial continues
            rows = [{"absent": source.name, "reason": f"{type(error).__name__}: {error}"}]
        self._rows += [{"at": now, **row} for row in rows]
        return not any(row.get("absent") == source.name for row in rows)
