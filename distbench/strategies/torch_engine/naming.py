"""Modules by the names that a workload gives them, in which ``*`` stands for any number."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Sequence

from torch import nn

from distbench.errors import did_you_mean
from distbench.strategies.base import Refused
from distbench.workloads.base import Workload

_SHOWN = 12
"""Names of a model that a message has at most: those most like the wrong one."""
_LISTED = 4
"""Names that a list in a message has at most."""


def named(module: nn.Module, name: str) -> list[nn.Module]:
    """Modules inside *module* that *name* names."""
    return [inner for known, inner in module.named_modules() if fnmatch.fnmatchcase(known, name)]


def check(module: nn.Module, workload: Workload, names: Iterable[str]) -> None:
    """See that each of the *names* that *workload* declares is of a module of the whole *module*.

    Raises:
        Refused: some are of none, so that what they name would be left as it is.
    """
    wrong = [name for name in names if not named(module, name)]
    if not wrong:
        return
    known = {re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name): None for name, _ in module.named_modules() if name}
    raise Refused(
        "; ".join(
            f"{type(workload).__name__} declares {name!r}, and no module of the model has that name; "
            f"{did_you_mean(name, difflib.get_close_matches(name, known, n=_SHOWN, cutoff=0))}"
            for name in wrong
        )
    )


def listed(names: Sequence[str]) -> str:
    """*names* with commas, and the number of those that a message has no room for."""
    left = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {left:,} more" if left > 0 else "")
