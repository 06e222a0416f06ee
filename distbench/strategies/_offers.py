"""What strategies that divide a model are not offered with. Without torch."""

from __future__ import annotations

from distbench.case import Case


def not_offered(case: Case, technique: str) -> str | None:
    """Why *technique*, which takes layers apart, can't train *case*, or None if nothing is in its way."""
    if case.compile != "none":
        return f"compile is not offered with {technique}; use compile: false"
    if case.precision.float8 != "none":
        return f"float8 is not offered with {technique}; use precision: bf16"
    return None
