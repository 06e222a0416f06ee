"""Waiting for data, and the throughput of steps that never wait."""

from __future__ import annotations

from distbench.analysis.case_summary import CaseSummary

_STEP, _READY = "step_s", "ready_step_s"


def lost_share(row: CaseSummary) -> float | None:
    """Share of a timed step that ends with it if data are ready; None: no such step was measured.

    It is also the share of the throughput with ready data that the loader costs.
    """
    if _STEP not in row.values or _READY not in row.values:
        return None
    return max(0.0, 1 - row.values[_READY].value / row.values[_STEP].value)


def ready_tokens_per_s(row: CaseSummary) -> float | None:
    """Tokens per second of steps that never wait for data; None: unknown."""
    if "tokens_per_s" not in row.values or _READY not in row.values:
        return None
    return row.values["tokens_per_s"].value * row.values[_STEP].value / row.values[_READY].value


def wait_range(row: CaseSummary) -> tuple[float, float] | None:
    """Mean wait of a step in seconds, on the ranks that wait least and most; None: unknown.

    Of the representative trial.
    """
    trial = row.representative_trial
    ranks = trial.samples.get("data_wait_s", []) if trial else []
    means = [sum(waits) / len(waits) for rank in ranks if (waits := [s for s in rank if s is not None])]
    return (min(means), max(means)) if means else None
