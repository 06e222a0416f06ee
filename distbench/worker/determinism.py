"""Deterministic algorithms: what has no deterministic form is refused, until a model turns out to need it.

With warnings only, attention on CUDA keeps a backward pass that adds in any order although it has another one
(ATen, attention_backward.cu), so nothing would repeat itself in bits for the sake of what few models do.
"""

import re
from collections.abc import Callable
from typing import TypeVar

import torch

from distbench.trial import STRICT

T = TypeVar("T")

# ATen's alertNotDeterministic, and torch._prims_common.alert_not_deterministic
_LACKING = re.compile(r"(\S+) does not have a deterministic implementation")


def deterministically(job: Callable[[], T]) -> tuple[T, str]:
    """Result of *job* under deterministic algorithms, and how far they went: ``STRICT``, or why not.

    Where torch names an operation that has no deterministic form here, *job* is done once more, and such are
    allowed. All ranks train the same model, so it is the same operation on each of them.
    """
    torch.use_deterministic_algorithms(True)
    try:
        return job(), STRICT
    except Exception as error:
        # a compiler wraps what torch raises
        lacking = _LACKING.search(str(error))
        if lacking is None:
            raise
    # out of the handler, as the error holds the engine in which it was raised
    torch.use_deterministic_algorithms(True, warn_only=True)
    needed = f"the training needs {lacking[1]}, of which torch has none here"
    return job(), f"operations without a deterministic form were allowed: {needed}"
