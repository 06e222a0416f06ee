"""Find GPUs that wait for the host: launching kernels takes longer than running them."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.analysis.case_summary import CaseSummary
from distbench.core.text import join_limited, one_line

MAX_GPU_IDLE_SHARE = 0.3
"""Largest share of a step in which a GPU may be idle before the run reports it."""


def gpu_idle_share(row: CaseSummary) -> float | None:
    """Share of a timed step in which nothing ran on the GPU; None on a CPU, or without a profile.

    The profiler lengthens the gaps between kernels but not the kernels, so the kernels' time under the
    profiler is compared with the timed step.
    """
    names = ("profile_step_s", "profile_other_s", "step_s")
    told = [row.values[name].value for name in names if name in row.values]
    if row.case.device != "cuda" or len(told) < len(names) or told[-1] <= 0:
        return None
    under_profiler, idle, timed = told
    return max(0.0, 1 - (under_profiler - idle) / timed)


def idle_gpu_sentences(rows: Sequence[CaseSummary]) -> list[str]:
    """Finding if any case in *rows* has GPUs idle for more than ``MAX_GPU_IDLE_SHARE`` of a step."""
    shares = {
        row.case.name: idle
        for row in rows
        if (idle := gpu_idle_share(row)) is not None and idle > MAX_GPU_IDLE_SHARE
    }
    if not shares:
        return []
    cases = [f"{one_line(name)} {idle:.0%}" for name, idle in shares.items()]
    return [
        f"GPUs are idle for much of each step ({join_limited(cases, limit=6)}): they wait for the "
        "host to launch kernels, so these speeds rank strategies by their number of kernels. Use a "
        "larger model or micro-batch (preset: auto of the workload transformer fills a GPU)."
    ]
