"""What strategies that split a model do not support. Without torch."""

from __future__ import annotations

from distbench.core.case import Case


def not_offered(case: Case, technique: str) -> str | None:
    """Why *technique*, which takes layers apart, can't train *case*, or None if nothing is in its way."""
    if case.compile != "none":
        return f"compile is not supported with {technique}; use compile: false"
    if case.precision.float8 != "none":
        return f"float8 is not supported with {technique}; use precision: bf16"
    return None


def unfused(case: Case) -> str | None:
    """Why the optimizer of *case* can't update distributed tensors, or None."""
    if case.optimizer.name == "sgd" and case.optimizer.kernel == "fused":
        return "torch has no fused SGD for sharded tensors; set optimizer.kernel: foreach"
    return None


def reduced_otherwise(case: Case, who: str, instead: str = "") -> str | None:
    """Why *who*, which reduces gradients as DDP does, can't reduce them in the dtype that *case* asks for.

    None: it can. *instead* is an alternative to giving both the same dtype.
    """
    precision = case.precision
    if precision.reduce == precision.master:
        return None
    return (
        f"{who} reduces gradients in the parameters' dtype: precision.reduce = {precision.reduce} with "
        f"precision.master = {precision.master}; use the same for both{instead and f', or {instead}'}"
    )
