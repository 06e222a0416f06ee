"""Modules by names in which ``*`` stands for any number."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Iterator

from torch import nn

from distbench.core.errors import did_you_mean

_MAX_NAMES = 12
"""Names of a model that a message has at most: those most like the wrong one."""


def modules_named(module: nn.Module, name: str) -> list[nn.Module]:
    """Modules inside *module* that *name* names."""
    return [inner for known, inner in module.named_modules() if fnmatch.fnmatchcase(known, name)]


def unknown_names(module: nn.Module, names: Iterable[str]) -> Iterator[str]:
    """Each of *names* that is of no module inside *module*, with those that it may stand for."""
    known = {re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name): None for name, _ in module.named_modules() if name}
    for name in names:
        if not modules_named(module, name):
            near = did_you_mean(name, difflib.get_close_matches(name, known, n=_MAX_NAMES, cutoff=0))
            yield f"{name!r}, and no module of the model has that name; {near}"
