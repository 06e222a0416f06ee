"""FLOPs of operators for which torch's counter has no formula, by the shapes of their arguments."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import torch

_OPERATORS = ("aten", "prims", "prim")
"""Namespaces of torch's own operators; only its author knows the work of any other."""
_PRODUCT_NAMES = re.compile(
    r"(^|_)(mm|bmm|addmm|addbmm|baddbmm|mv|addmv|dot|trilinear|conv\w*|attention\w*|rnn\w*|fft\w*|cdist\w*"
    r"|linalg\w*|cholesky\w*|solve\w*|sparse\w*)(_|$)"
)
"""Names of torch's operators that multiply matrices, in case no formula is known."""


def may_multiply(func: Any) -> bool:
    """True if the operator *func* multiplies matrices, or if only its author knows its work."""
    namespace, _, name = str(func.name()).partition(".")[0].partition("::")
    return namespace not in _OPERATORS or bool(_PRODUCT_NAMES.search(name))


def _grouped_mm_flops(a: torch.Size, b: torch.Size, *_: Any, **__: Any) -> int:
    """FLOPs of a grouped product: a row is multiplied only with the matrix of its group."""
    stacked = a[0] if len(a) == len(b) == 3 else 1
    return 2 * stacked * a[-2] * a[-1] * b[-1]


def _vector_flops(a: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * prod(a)


FORMULAS: dict[Any, Any] = {
    torch.ops.aten._grouped_mm: _grouped_mm_flops,
    torch.ops.aten.mv: _vector_flops,
    torch.ops.aten.dot: _vector_flops,
    torch.ops.aten.vdot: _vector_flops,
}
"""Operator -> FLOPs by the shapes of its arguments."""
