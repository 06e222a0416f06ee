"""Quick host checks that run before every benchmark."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from distbench.core import registry
from distbench.core.units import format_count
from distbench.doctor import check_host
from distbench.metrics.base import NotAvailable
from distbench.metrics.telemetry import Telemetry
from distbench.metrics.telemetry.host import HostReader, foreign_cpu_share
from distbench.metrics.telemetry.sampler import Row
from distbench.plan import Plan
from distbench.run import RunExecution
from distbench.run.observer import Observer
from distbench.suite import Suite
from distbench.system.cache import cache_folder, temporary_cache_text
from distbench.system.cpus import core_count
from distbench.system.host_state import inspect_host
from distbench.system.machine import unchecked_gpus_text, unsupported_gpu_text

_SLOW_GPU_VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": "the host waits for each kernel, so no time is representative",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "each tensor is allocated by the driver, which waits for the device",
}
_MIN_CPU_S = 1.0
"""CPU seconds, of all CPUs together, from which on the share of other processes is meaningful."""


def warn_before_run(execution: RunExecution, observer: Observer) -> None:
    """Note problems of this host that may spoil *execution*; other hosts of ranks are not checked."""
    folders: list[Path] = [execution.run.folder, cache_folder()]
    ranks = max((planned.case.world_size for planned in execution.plan.cases), default=1)
    for finding in check_host(inspect_host(folders, cache_folder() / "ops", resolve_name=False), ranks):
        observer.note(f"{finding.grade}: {finding.check}: {finding.what}; {finding.remedy}")
    if where := temporary_cache_text():
        observer.note(f"note: {where}")
    on_gpus = any(planned.case.device == "cuda" for planned in execution.plan.cases)
    for warning in slow_gpu_variables(os.environ) if on_gpus else []:
        observer.note(f"warning: {warning}")
    if on_gpus and (why := unchecked_gpus_text()):
        observer.note(f"note: {why}")
    if not on_gpus and (why := unsupported_gpu_text()):
        observer.note(f"note: {why}; ranks compute on the CPU")


def slow_gpu_variables(environment: Mapping[str, str]) -> list[str]:
    """Warn about variables of *environment* that slow every GPU measurement."""
    return [
        f"{name} = {environment[name]}: {what}; unset it"
        for name, what in _SLOW_GPU_VARIABLES.items()
        if environment.get(name, "0") not in ("", "0")
    ]


class CpuContention:
    """CPU use of other processes on this host during preparation, at no cost in time."""

    def __init__(self, suite: Suite, plan: Plan, repeats: int = 0) -> None:
        """Begin to watch, for a run of *suite* that repeats noisy trials up to *repeats* times a case."""
        chosen = next((choice for choice in suite.metrics if choice.name == "telemetry"), None)
        on_cpus = any(item.case.device == "cpu" and not item.problem for item in plan.cases)
        is_here = suite.launcher.name == "local"
        self._telemetry: Telemetry | None = (
            registry.create_plugin("metrics", chosen) if chosen and on_cpus and is_here else None
        )
        self._repeats = repeats
        self._first = self._read()

    def warning(self) -> str:
        """Warning if other processes used the CPU during preparation; empty if not."""
        first, last = self._first, self._read()
        if self._telemetry is None or first is None or last is None:
            return ""
        total = last["total_s"] - first["total_s"]
        if total < _MIN_CPU_S:
            return ""
        taken, limit = foreign_cpu_share(first, last), self._telemetry.foreign_cpu_limit(core_count(), total)
        if isinstance(taken, NotAvailable) or taken <= limit:
            return ""
        return (
            f"warning: other processes used {taken:.0%} of the CPU time during preparation (limit "
            f"{limit:.1%}). Trials above the limit are marked as noisy, and a case with only noisy "
            f"trials is not recommended. Stop those processes or wait, {self._repeat_advice()}, or, if "
            "some cores stay free, raise the limit: --set metrics.telemetry.max_foreign_cpu=0.5"
        )

    def _repeat_advice(self) -> str:
        if not self._repeats:
            return "repeat them (--set measure.repeat_noisy=3)"
        return f"allow more than {format_count(self._repeats, 'repeat')} per case (measure.repeat_noisy)"

    def _read(self) -> Row | None:
        if self._telemetry is None:
            return None
        try:
            return HostReader().read()[0]
        except NotAvailable:
            return None
