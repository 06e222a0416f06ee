"""``telemetry``: machine conditions during a trial, and whether they disturbed it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from distbench.bounds import Bound
from distbench.case import Case
from distbench.metrics.base import Absent, Column, Metric, Pass, Sampler, TableSpec, Trial, or_absent
from distbench.metrics.telemetry.columns import GPU, HOST, TABLE
from distbench.metrics.telemetry.gpu import Gpus, gpu_numbers
from distbench.metrics.telemetry.host import Host, Others, host_numbers
from distbench.metrics.telemetry.sampling import Row, Ticker
from distbench.metrics.telemetry.windows import known


@dataclass(frozen=True)
class Telemetry(Metric):
    """Load, steal, clocks and other processes of the host; power, clocks, memory and throttling of the GPUs.

    A thread of the command line samples the machine that it runs on, never a timed rank: ranks on
    other machines go unseen. What passes a limit below marks the trial as degraded: kept, and kept
    out of comparisons. The limits of the host count for ranks on CPUs, those of the GPUs for ranks on GPUs.
    """

    interval_s: Annotated[float, Bound(0.2, 1)] = 0.2
    """Seconds between two samples, 0.2 to 1; each is a row of the record and GPU."""
    max_foreign_cpu: float = 0.2
    """Most of the usable CPUs' time that other processes may take around the timed window. One busy
    process beside two ranks on two cores takes a third to a half of it and costs up to half of the speed;
    with cores left idle it may cost little: then raise this."""
    max_steal: float = 0.05
    """Most of the CPU time that a hypervisor may take."""
    max_throttle: float = 0.05
    """Most of the samples in which a GPU may lower its clocks to save itself (heat, power supply)."""
    max_other_processes: int = 0
    """Most processes of others that may compute on a GPU of the trial."""

    passes: ClassVar[frozenset[Pass]] = frozenset()
    tables: ClassVar[tuple[TableSpec, ...]] = (TABLE,)
    columns: ClassVar[tuple[Column, ...]] = (*HOST, *GPU)

    def sampler(self, case: Case) -> Sampler:
        sources: list[Any] = [Host(), Others()]
        if case.device == "cuda":
            import pynvml

            sources.append(Gpus(pynvml, case.world_size, os.environ))
        return Ticker(sources, self.interval_s)

    def summary(self, trial: Trial) -> dict[str, float | Absent]:
        rows = trial.tables.get("telemetry", [])
        gpu: dict[str, float | Absent]
        if trial.case.device == "cpu":
            gpu = _all_absent(GPU, Absent("no GPU was used"))
        else:
            try:
                gpu = gpu_numbers(rows, trial.window, _tokens(trial))
            except Absent as reason:
                gpu = _all_absent(GPU, reason)
        return {**_host(trial, rows), **gpu}

    def degraded(self, trial: Trial) -> str:
        values = self.summary(trial)
        reasons = [
            text.format(value, limit)
            for name, (limit, text) in self._limits(trial.case.device).items()
            if isinstance(value := values[name], float) and value > limit
        ]
        return "; ".join(reasons)

    def _limits(self, device: str) -> dict[str, tuple[float, str]]:
        """Limit of each column that counts for ranks on *device*, and the reason if a trial exceeds it."""
        if device == "cpu":
            return {
                "host_foreign_cpu": (
                    self.max_foreign_cpu,
                    "other processes took {:.0%} of the CPU time around the timed window (limit {:.0%})",
                ),
                "host_steal": (
                    self.max_steal,
                    "the hypervisor took {:.0%} of the CPU time around the timed window (limit {:.0%})",
                ),
            }
        return {
            "gpu_throttle": (
                self.max_throttle,
                "a GPU lowered its clocks because of heat or power supply in {:.0%} of the samples "
                "in the timed window (limit {:.0%})",
            ),
            "gpu_other_processes": (
                self.max_other_processes,
                "{:.0f} other processes computed on a GPU of the trial (limit {:.0f})",
            ),
        }


def _all_absent(of: tuple[Column, ...], reason: Absent) -> dict[str, float | Absent]:
    return {column.name: reason for column in of}


def _host(trial: Trial, rows: list[Row]) -> dict[str, float | Absent]:
    try:
        found = host_numbers(rows, trial.window, _ranks_cpu_s(trial))
    except Absent as reason:
        return _all_absent(HOST, reason)
    busy = or_absent(lambda: known(rows, "others_busy", "others")[-1]["others_busy"])
    return {**found, "host_busy_processes": busy}


def _steps(trial: Trial) -> int:
    return len((trial.samples.get("step_s") or [[]])[0])


def _tokens(trial: Trial) -> float | None:
    """Tokens of the timed window, None if its steps were not counted."""
    return _steps(trial) * trial.case.batch.global_batch_size * trial.tokens_per_sample or None


def _ranks_cpu_s(trial: Trial) -> float | None:
    """CPU seconds of all ranks in the timed window as they measured them; None if unknown."""
    per_step = [value for rank in trial.samples.get("cpu_s", []) for value in rank if value is not None]
    return math.fsum(per_step) * _steps(trial) if per_step and _steps(trial) else None
