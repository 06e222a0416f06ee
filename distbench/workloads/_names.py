"""Look up modules by names in which ``*`` stands for any number."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Iterator

from torch import nn

from distbench.core.errors import did_you_mean

_MAX_NAMES = 12
"""Maximum names of a model in a message: those most similar to the wrong one."""


def modules_named(module: nn.Module, name: str) -> list[nn.Module]:
    """Modules inside *module* that match *name*."""
    return [inner for known, inner in module.named_modules() if fnmatch.fnmatchcase(known, name)]


def unknown_names(module: nn.Module, names: Iterable[str]) -> Iterator[str]:
    """Yield each of *names* that matches no module inside *module*, with similar names."""
    known = {re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name): None for name, _ in module.named_modules() if name}
    for name in names:
        if not modules_named(module, name):
            near = did_you_mean(name, difflib.get_close_matches(name, known, n=_MAX_NAMES, cutoff=0))
            yield f"{name!r}, and no module of the model has that name; {near}"
