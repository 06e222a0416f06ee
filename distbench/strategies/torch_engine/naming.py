"""Modules by the names that a workload gives them, in which ``*`` stands for any number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from distbench.strategies.base import Refused
from distbench.workloads._names import named, unknown
from distbench.workloads.base import Workload

__all__ = ["check", "listed", "named"]

_LISTED = 4
"""Names that a list in a message has at most."""


def check(module: nn.Module, workload: Workload, names: Iterable[str]) -> None:
    """See that each of the *names* that *workload* declares is of a module of the whole *module*.

    Raises:
        Refused: some are of none, so that what they name would be left as it is.
    """
    if wrong := [*unknown(module, names)]:
        raise Refused("; ".join(f"{type(workload).__name__} declares {name}" for name in wrong))


def listed(names: Sequence[str]) -> str:
    """*names* with commas, and the number of those that a message has no room for."""
    left = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {left:,} more" if left > 0 else "")
