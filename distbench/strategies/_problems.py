"""Reasons for ``unsupported`` that several strategies share; without torch."""

from __future__ import annotations

from distbench.case import Case


def state_problem(case: Case) -> str | None:
    """Return why torch's optimizers can't keep the dtypes that *case* asks for, or None."""
    precision = case.precision
    if precision.optimizer_state != precision.master:
        return (
            "torch's optimizers keep their state in the dtype of the parameters: precision."
            f"optimizer_state = {precision.optimizer_state} needs precision.master = the same"
        )
    return None
