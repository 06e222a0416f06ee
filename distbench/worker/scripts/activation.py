"""Wait for the first update of an optimizer, which makes this process a rank.

Runs at the start of every Python process of a measured command, so it imports next to nothing.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

COUNT_VARIABLE = "DISTBENCH_COUNT_CPU_MEMORY"
"""Variable that is set if processes count the bytes of tensors in host memory, from torch's import on."""
SETTINGS_VARIABLE = "DISTBENCH_MEASURE"
"""As in ``ipc.script_files``, which imports more than each start of Python should pay for."""
_OPTIMIZERS = "torch.optim.optimizer"

_waiting = threading.Event()


def wait_for_optimizer() -> None:
    """Begin to measure once an optimizer updates parameters, whenever torch is imported."""
    _waiting.set()
    if _OPTIMIZERS in sys.modules:
        _watch_updates(sys.modules[_OPTIMIZERS])
    else:
        sys.meta_path.insert(0, _ImportHook(_OPTIMIZERS, _watch_updates))


def attach() -> None:
    """Let ``distbench measure`` measure this script: one line in it, for launchers that drop ``PYTHONPATH``.

    Without ``distbench measure`` it does nothing. Call it before the first update of an optimizer.
    """
    if os.environ.get(SETTINGS_VARIABLE) and not _waiting.is_set():
        wait_for_optimizer()


def step() -> None:
    """End a step of a script whose parameters no optimizer of torch updates.

    From the first call on, only these calls end steps. Without ``distbench measure`` it does nothing.
    """
    if os.environ.get(SETTINGS_VARIABLE):
        from distbench.worker.scripts.session import mark_step

        mark_step()


def _watch_updates(module: ModuleType) -> None:
    if os.environ.get(COUNT_VARIABLE):
        from distbench.metrics.memory import counting_library

        counting_library.install(sys.modules["torch"].__version__)

    def begin(optimizer: Any, *_: Any) -> None:
        for handle in handles:
            handle.remove()
        # only now: the imports of a rank are those of torch and more
        from distbench.worker.scripts.session import begin_session

        begin_session(optimizer)

    def wait_for_end(*_: Any) -> None:
        if sys.modules["torch"].compiler.is_compiling():
            # a hook must not become a part of what torch.compile makes of the update
            return
        # the last of the hooks: torch iterates over them, so only the last may remove or add any
        for handle in handles[1:]:
            handle.remove()
        handles[1:] = [module.register_optimizer_step_post_hook(begin)]

    handles = [module.register_optimizer_step_pre_hook(wait_for_end)]


class _ImportHook:
    """Finder of imports that finds nothing itself, but calls a function once a module has been imported."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find the spec of the awaited module, whose loader then calls the function; None for others."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        run = loader.exec_module

        def run_then(module: ModuleType) -> None:
            run(module)
            self._then(module)

        # of this one loader, which inspect and linecache still need as it is
        loader.exec_module = run_then
        return spec
