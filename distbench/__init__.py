"""distbench: benchmarks and diagnostics for distributed training.

``run`` measures a suite and ``measure`` a script, ``load`` reads a stored run, ``trace`` reads profiler
traces; a script may call ``attach`` and ``step``. Each is imported when
it is first used, so that ``import distbench`` costs nothing; ``__init__.pyi`` has their types.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_PLACES = {
    **{
        name: f"distbench.core.errors:{name}"
        for name in ("DistbenchError", "InfrastructureError", "RecordError", "SuiteError", "UsageError")
    },
    "Run": "distbench.api.run:RunResults",
    "attach": "distbench.worker.scripts.activation:attach",
    "load": "distbench.api.run:load",
    "measure": "distbench.api.scripts:measure",
    "run": "distbench.api.suite_run:run",
    "step": "distbench.worker.scripts.activation:step",
    "trace": "distbench.api.traces:trace",
}
"""Public name -> its module and its name there."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'distbench' has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})


class _Package(ModuleType):
    """This module, whose function ``run`` has the name of a package in it."""

    @property
    def run(self) -> Any:
        """The function, whoever has imported the package ``distbench.run``."""
        return __getattr__("run")

    @run.setter
    def run(self, package: ModuleType) -> None:
        """Keep the function: who imports the package finds it in ``sys.modules``."""


sys.modules[__name__].__class__ = _Package
