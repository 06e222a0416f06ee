"""Modules by the names that a workload gives them, in which ``*`` stands for any number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from distbench.strategies.base import UnsupportedCase
from distbench.workloads._names import modules_named, unknown_names
from distbench.workloads.base import Workload

__all__ = ["check_module_names", "listed", "modules_named"]

_MAX_LISTED = 4
"""Names that a list in a message has at most."""


def check_module_names(module: nn.Module, workload: Workload, names: Iterable[str]) -> None:
    """See that each of the *names* that *workload* declares is of a module of the whole *module*.

    Raises:
        UnsupportedCase: some are of none, so that what they name would be left as it is.
    """
    if wrong := [*unknown_names(module, names)]:
        raise UnsupportedCase("; ".join(f"{type(workload).__name__} declares {name}" for name in wrong))


def listed(names: Sequence[str]) -> str:
    """*names* with commas, and the number of those that a message has no room for."""
    left = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {left:,} more" if left > 0 else "")
