"""Modules by the names that a workload declares, in which ``*`` stands for any number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from distbench.strategies.base import UnsupportedCase
from distbench.workloads._names import modules_named, unknown_names
from distbench.workloads.base import Workload

__all__ = ["check_module_names", "listed", "modules_named"]

_MAX_LISTED = 4
"""Maximum number of names in a list of a message."""


def check_module_names(module: nn.Module, workload: Workload, names: Iterable[str]) -> None:
    """Check that each of the *names* that *workload* declares names a module of the full *module*.

    Raises:
        UnsupportedCase: some name no module, so they would have no effect.
    """
    if wrong := [*unknown_names(module, names)]:
        raise UnsupportedCase("; ".join(f"{type(workload).__name__} declares {name}" for name in wrong))


def listed(names: Sequence[str]) -> str:
    """*names* with commas, and the number of those left out if there are too many."""
    left = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {left:,} more" if left > 0 else "")
