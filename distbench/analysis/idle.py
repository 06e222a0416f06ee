"""GPUs that wait for the host: steps so short that launching kernels takes longer than running them."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.analysis.case_summary import CaseSummary
from distbench.core.text import listed, one_line

MOST = 0.3
"""Largest share of a step in which a GPU may have nothing to do before the run says so."""


def share(row: CaseSummary) -> float | None:
    """Share of a timed step in which nothing ran on the GPU; None on a CPU, or without a profile.

    Kernels take as long under the profiler as without it, what is between them does not: so what they took
    is held against the step that was timed.
    """
    names = ("profile_step_s", "profile_other_s", "step_s")
    told = [row.values[name].value for name in names if name in row.values]
    if row.case.device != "cuda" or len(told) < len(names) or told[-1] <= 0:
        return None
    under_profiler, idle, timed = told
    return max(0.0, 1 - (under_profiler - idle) / timed)


def sentences(rows: Sequence[CaseSummary]) -> list[str]:
    """A finding if the GPUs of any case in *rows* are idle for more than ``MOST`` of a step."""
    shares = {row.case.name: idle for row in rows if (idle := share(row)) is not None and idle > MOST}
    if not shares:
        return []
    cases = [f"{one_line(name)} {idle:.0%}" for name, idle in shares.items()]
    return [
        f"GPUs wait for the host: nothing runs on them for much of a step ({listed(cases, most=6)}), so "
        "these speeds rank strategies by how many kernels they launch. Take a larger model or micro-batch "
        "(preset: auto of the workload transformer fills a GPU)."
    ]
