"""Requirements shared by strategies that split a model. Imports no torch."""

from __future__ import annotations

from distbench.core.case import Case


def transform_problem(case: Case, technique: str) -> str | None:
    """Reason why *technique*, which takes layers apart, can't train *case*; None if it can."""
    if case.compile != "none":
        return f"compile is not supported with {technique}; use compile: false"
    if case.precision.float8 != "none":
        return f"float8 is not supported with {technique}; use precision: bf16"
    return None


def fused_sgd_problem(case: Case) -> str | None:
    """Reason why the optimizer of *case* can't update distributed tensors; None if it can."""
    if case.optimizer.name == "sgd" and case.optimizer.kernel == "fused":
        return "torch has no fused SGD for sharded tensors; set optimizer.kernel: foreach"
    return None


def reduce_dtype_problem(case: Case, strategy_name: str, alternative: str = "") -> str | None:
    """Reason why *strategy_name* can't reduce gradients in the dtype of *case*; None if it can.

    It reduces as DDP does. *alternative* is an alternative to giving both the same dtype.
    """
    precision = case.precision
    if precision.reduce == precision.master:
        return None
    return (
        f"{strategy_name} reduces gradients in the parameters' dtype, but precision.reduce = "
        f"{precision.reduce} and precision.master = {precision.master}; use the same dtype for "
        f"both{alternative and f', or {alternative}'}"
    )
