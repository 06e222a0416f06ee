"""Predict step times from workload formulas and measured rates.

The rates are those of docs/equivalence.md. Decisions based on them must be the same every time.
"""

from __future__ import annotations

from distbench.core.case import Case
from distbench.workloads.base import workload_of

# operations per second of a CPU core, and of a GPU, in fp32
_FLOPS_PER_S = {"cpu": 4e10, "cuda": 1e13}
# seconds per element of the parameters in each step, for updates, fingerprints, and the starts of trainings
_UPDATE_S_PER_ELEMENT = {"cpu": 20e-9, "cuda": 2e-9}


def predicted_compute_s(case: Case) -> float | None:
    """Seconds of forward and backward pass in a step of *case*; None if its workload has no formula."""
    if (flops := workload_of(case).flops_per_sample()) is None:
        return None
    devices = case.world_size * (case.threads if case.device == "cpu" else 1)
    return flops * case.batch.global_batch_size / _FLOPS_PER_S[case.device] / devices


def predicted_update_s(case: Case, parameters: int) -> float:
    """Seconds per step for the update of *parameters*, and in a check for their fingerprints."""
    return parameters * _UPDATE_S_PER_ELEMENT[case.device]
