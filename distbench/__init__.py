"""distbench: benchmarks and diagnostics for distributed training."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distbench.worker.scripts.activation import attach as attach
    from distbench.worker.scripts.activation import step as step

__version__ = "0.1.0"

_FUNCTIONS = {
    "attach": "distbench.worker.scripts.activation",
    "step": "distbench.worker.scripts.activation",
}
"""Public function -> its module, which is imported with its first use."""


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
