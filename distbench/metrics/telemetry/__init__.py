"""``telemetry``: machine conditions during a trial, and whether they disturbed it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from distbench.core.bounds import Bound
from distbench.core.case import Case
from distbench.core.columns import Column
from distbench.metrics.base import Metric, NotAvailable, Sampler, TrialData, value_or_reason
from distbench.metrics.telemetry.columns import GPU_COLUMNS, HOST_COLUMNS, TABLE
from distbench.metrics.telemetry.gpu import GpuReader, gpu_values
from distbench.metrics.telemetry.host import (
    HostReader,
    NodeValues,
    OtherProcesses,
    cpu_resolution,
    host_values,
    sibling_agents,
    tick_uncertainty,
)
from distbench.metrics.telemetry.nodes import reduce_over_nodes, trial_by_node, with_node_name
from distbench.metrics.telemetry.sampler import PeriodicSampler
from distbench.metrics.telemetry.windows import samples_with

DEFAULT_EFFECT = 0.05
"""Smallest difference in pace that matters, as a fraction, unless a suite says otherwise."""


@dataclass(frozen=True)
class Telemetry(Metric):
    """Load, steal, clocks and other processes of the host; power, clocks, memory and throttling of the GPUs.

    A thread of the command line samples the machine that it runs on, never a timed rank; on several nodes
    a thread of each node's agent does. What passes a limit below on any of them marks the trial as degraded:
    kept, and kept out of comparisons. The limits of the host count for ranks on CPUs, those of the GPUs for
    ranks on GPUs. A CPU quota that stops them counts for both.
    """

    interval_s: Annotated[float, Bound(0.2, 1)] = 0.2
    """Seconds between two samples, 0.2 to 1; each gives one row for the host and one per GPU."""
    effect: Annotated[float, Bound(0, 1, open_low=True)] = DEFAULT_EFFECT
    """Smallest relevant difference in speed, as a fraction; limits of the host that are not set are derived
    from it."""
    max_foreign_cpu: float | None = None
    """Maximum fraction of the usable CPU time that other processes may take around the timed window; null:
    ``effect`` of one CPU (0.025 on two), plus the uncertainty of ticks of 10 ms. A step waits for its slowest
    rank, and a process on the CPU of a rank slows that rank down. If CPUs are idle it may cost little: then
    raise this."""
    max_steal: float | None = None
    """Maximum fraction of the CPU time that a hypervisor may take; null: as ``max_foreign_cpu``."""
    max_quota_throttle: float = 0.01
    """Maximum fraction of the periods of a CPU quota in which it may stop the ranks: each lasts up to 100 ms,
    in which all other ranks wait."""
    max_throttle: float = 0.05
    """Maximum fraction of the samples in which a GPU may lower its clocks to protect itself (heat, power
    supply)."""
    max_other_processes: int = 0
    """Maximum number of other processes that may compute on a GPU of the trial."""

    passes = frozenset()
    tables = (TABLE,)
    columns = (*HOST_COLUMNS, *GPU_COLUMNS)

    def sampler(self, case: Case) -> Sampler:
        others = sibling_agents()
        sources: list[Any] = [HostReader(siblings=others), OtherProcesses(siblings=others)]
        if case.device == "cuda":
            import pynvml

            sources.append(GpuReader(pynvml, case.world_size, os.environ, siblings=others))
        return PeriodicSampler(sources, self.interval_s)

    def summary(self, trial: TrialData) -> dict[str, float | NotAvailable]:
        ranks = {node: len(of) for node, of in trial.nodes.items()} or {"": trial.case.world_size}
        return reduce_over_nodes(
            {node: _node_values(own) for node, own in trial_by_node(trial).items()}, ranks
        )

    def degraded_reason(self, trial: TrialData) -> str:
        parts = trial_by_node(trial).items()
        return "; ".join(
            with_node_name(node, reason) for node, own in parts for reason in self._exceeded_limits(own)
        )

    def _exceeded_limits(self, trial: TrialData) -> list[str]:
        """Reasons why the values of one node in *trial* exceed the limits."""
        values, exceeded = _node_values(trial), []
        for name, reason in _REASONS[trial.case.device].items():
            value = values[name]
            if isinstance(value, float) and value > (limit := self._limit(name, trial)):
                exceeded.append(reason.format(value, limit))
        return exceeded

    def _limit(self, name: str, trial: TrialData) -> float:
        # the option is named like the column, without host or gpu
        limit: float | None = getattr(self, f"max_{name.partition('_')[2]}")
        if limit is not None:
            return limit
        return self._default_limit(*cpu_resolution(trial.tables["telemetry"], trial.window))

    def foreign_cpu_limit(self, cpus: int, total_s: float) -> float:
        """Limit on the share that others take of *total_s* CPU seconds of *cpus*, as in a trial."""
        limit = self.max_foreign_cpu
        return self._default_limit(cpus, tick_uncertainty(total_s)) if limit is None else limit

    def _default_limit(self, cpus: float, uncertainty: float) -> float:
        return max(self.effect / cpus, _MIN_LIMIT) + uncertainty


# any kernel takes less than this by itself
_MIN_LIMIT = 0.01
_THROTTLED = {
    "host_quota_throttle": "the CPU quota of the cgroup stopped the ranks in {:.0%} of its periods around "
    "the timed window (limit {:.0%})"
}
# device of the ranks -> column -> reason if a trial exceeds its limit
_REASONS = {
    "cpu": {
        **_THROTTLED,
        "host_foreign_cpu": "other processes took {:.1%} of the CPU time around the timed window "
        "(limit {:.1%})",
        "host_steal": "the hypervisor took {:.1%} of the CPU time around the timed window (limit {:.1%})",
    },
    "cuda": {
        **_THROTTLED,
        "gpu_throttle": "a GPU lowered its clocks because of heat or power supply in {:.0%} of the samples "
        "in the timed window (limit {:.0%})",
        "gpu_other_processes": "{:.0f} other processes computed on a GPU of the trial (limit {:.0f})",
    },
}


def _node_values(trial: TrialData) -> NodeValues:
    """Return all columns of *trial* as seen by one node."""
    return {
        **_or_all_absent(HOST_COLUMNS, _host_values, trial),
        **_or_all_absent(GPU_COLUMNS, _gpu_values, trial),
    }


def _or_all_absent(
    columns: tuple[Column, ...], read: Callable[[TrialData], NodeValues], trial: TrialData
) -> NodeValues:
    try:
        return read(trial)
    except NotAvailable as reason:
        return {column.name: reason for column in columns}


def _host_values(trial: TrialData) -> NodeValues:
    rows = trial.tables.get("telemetry", [])
    busy = value_or_reason(lambda: samples_with(rows, "others_busy", "others")[-1]["others_busy"])
    return {**host_values(rows, trial.window, _ranks_cpu_s(trial)), "host_busy_processes": busy}


def _gpu_values(trial: TrialData) -> NodeValues:
    if trial.case.device == "cpu":
        raise NotAvailable("no GPU was used")
    tokens = _steps(trial) * trial.case.batch.global_batch_size * trial.tokens_per_sample
    return gpu_values(trial.tables.get("telemetry", []), trial.window, tokens)


def _steps(trial: TrialData) -> int:
    return len((trial.samples.get("step_s") or [[]])[0])


def _ranks_cpu_s(trial: TrialData) -> float | None:
    """CPU seconds of all ranks in the timed window, as measured by the ranks; None if unknown."""
    per_step = [value for rank in trial.samples.get("cpu_s", []) for value in rank if value is not None]
    return math.fsum(per_step) * _steps(trial) if per_step and _steps(trial) else None
