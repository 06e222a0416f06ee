"""Estimate the time that a GPU loses to states of the training in the memory of its host."""

from __future__ import annotations

import statistics

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.settings import strategy_description
from distbench.analysis.step_timeline import COMMUNICATION, COMPUTE, COPY, RankStep, rank_steps
from distbench.traces.intervals import difference, length, union

_DIRECTIONS = ("HtoD", "DtoH")
"""Parts of the names that CUPTI gives copies between the host and a GPU."""


def offload_times(row: CaseSummary) -> tuple[float, float] | None:
    """Seconds of the profiled step in which a GPU copies to or from the host, and in which it waits for it.

    Copies that nothing else hides, and gaps between two of them, in which the host updates what was copied;
    means over the ranks with a timeline. None: nothing is offloaded, the device is a CPU, or no step was
    profiled.
    """
    offloads = strategy_description(row.case, row.representative_trial).offloads
    trial = row.representative_trial
    if not offloads or row.case.device != "cuda" or trial is None or not (kept := rank_steps(trial)):
        return None
    return statistics.fmean(map(_copy_s, kept)), statistics.fmean(map(_gap_s, kept))


def _copy_s(step: RankStep) -> float:
    copies = union((each.begin, each.end) for each in step.activities_of(COPY) if _is_of_host(each.name))
    work = [*step.activities_of(COMPUTE), *step.activities_of(COMMUNICATION)]
    return length(difference(copies, union((each.begin, each.end) for each in work)))


def _gap_s(step: RankStep) -> float:
    gaps = [gap for gap in step.idle_gaps() if _is_of_host(gap.previous) and _is_of_host(gap.following)]
    return sum(gap.seconds for gap in gaps)


def _is_of_host(name: str) -> bool:
    return any(direction in name for direction in _DIRECTIONS)
