"""Scale a trial's duration to other step counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distbench.core.case import MeasureConfig

_STEP_COUNTS = ("warmup", "steps", "profile_steps", "check_steps", "unsynced_steps")


def scaled_duration(record: Mapping[str, Any], recorded: MeasureConfig, requested: MeasureConfig) -> float:
    """Seconds from launch to end that the timed trial *record* would have taken as *requested*.

    Launch and building stay as they were. Each additional or missing step counts as the mean of the timed
    ones, whatever its purpose: one under the profiler takes somewhat longer.

    Args:
        record: Plain content of ``record.json``.
        recorded: How it was measured.

    Raises:
        KeyError, TypeError, ValueError: the record does not contain the times.
    """
    more = sum(getattr(requested, key) - getattr(recorded, key) for key in _STEP_COUNTS)
    seconds = float(record["wall_s"])
    return seconds + more * max(record["phases"]["time"]) / recorded.steps if more else seconds
