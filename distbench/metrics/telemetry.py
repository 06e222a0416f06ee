"""``telemetry``: how the machine fared beside a trial, and whether that disturbed it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, ClassVar

from distbench.case import Case
from distbench.metrics import _telemetry_columns as columns
from distbench.metrics._brackets import known
from distbench.metrics._sampling import Row
from distbench.metrics.base import Absent, Column, Metric, Pass, Sampler, Trial


@dataclass(frozen=True)
class Telemetry(Metric):
    """Load, steal, clocks and other processes of the host; power, clocks, memory and throttling of the GPUs.

    A thread of the command line samples the machine that it runs on, never a timed rank: ranks on
    other machines go unseen. What passes a limit below marks the trial as degraded: kept, and kept
    out of comparisons. The limits of the host count for ranks on CPUs, those of the GPUs for ranks on GPUs.
    """

    interval_s: float = 0.2
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
    columns: ClassVar[tuple[Column, ...]] = (*columns.HOST, *columns.GPU)

    def __post_init__(self) -> None:
        if not 0.2 <= self.interval_s <= 1:
            raise ValueError(f"interval_s = {self.interval_s:g}: 0.2 to 1 seconds")

    def sampler(self, case: Case) -> Sampler:
        from distbench.metrics._host import Host
        from distbench.metrics._others import Others
        from distbench.metrics._sampling import Ticker

        sources: list[Any] = [Host(), Others()]
        if case.device == "cuda":
            import pynvml

            from distbench.metrics._gpu import Gpus

            sources.append(Gpus(pynvml, case.world_size, os.environ))
        return Ticker(sources, self.interval_s)

    def summary(self, trial: Trial) -> dict[str, float | Absent]:
        from distbench.metrics._gpu_numbers import gpu_numbers

        rows = trial.tables.get("telemetry", [])
        gpu: dict[str, float | Absent]
        if trial.case.device == "cpu":
            gpu = _all_absent(columns.GPU, Absent("no GPU takes part"))
        else:
            try:
                gpu = gpu_numbers(rows, trial.window, _tokens(trial))
            except Absent as reason:
                gpu = _all_absent(columns.GPU, reason)
        return {**_host(trial, rows), **gpu}

    def degraded(self, trial: Trial) -> str:
        found = self.summary(trial)
        told = [
            text.format(value, limit)
            for device, name, limit, text in self._limits()
            if device == trial.case.device and isinstance(value := found[name], float) and value > limit
        ]
        return "; ".join(told)

    def _limits(self) -> tuple[tuple[str, str, float, str], ...]:
        """Return (device of the ranks, column, limit, what to say of one that passes it)."""
        return (
            (
                "cpu",
                "host_foreign_cpu",
                self.max_foreign_cpu,
                "other processes took {:.0%} of the CPU time around the timed window (limit {:.0%})",
            ),
            (
                "cpu",
                "host_steal",
                self.max_steal,
                "the hypervisor took {:.0%} of the CPU time around the timed window (limit {:.0%})",
            ),
            (
                "cuda",
                "gpu_throttle",
                self.max_throttle,
                "a GPU lowered its clocks because of heat or power supply in {:.0%} of the samples "
                "in the timed window (limit {:.0%})",
            ),
            (
                "cuda",
                "gpu_other_processes",
                self.max_other_processes,
                "{:.0f} other processes computed on a GPU of the trial (limit {:.0f})",
            ),
        )


def _all_absent(of: tuple[Column, ...], reason: Absent) -> dict[str, float | Absent]:
    return {column.name: reason for column in of}


def _host(trial: Trial, rows: list[Row]) -> dict[str, float | Absent]:
    from distbench.metrics._host import host_numbers

    try:
        found = host_numbers(rows, trial.window, _ranks_cpu_s(trial))
    except Absent as reason:
        return _all_absent(columns.HOST, reason)
    try:
        return {
            **found,
            "host_busy_processes": float(known(rows, "others_busy", "others")[-1]["others_busy"]),
        }
    except Absent as reason:
        return {**found, "host_busy_processes": reason}


def _steps(trial: Trial) -> int:
    return len((trial.samples.get("step_s") or [[]])[0])


def _tokens(trial: Trial) -> float | None:
    """Return the tokens of the timed window, None if its steps were not counted."""
    return _steps(trial) * trial.case.batch.global_batch_size * trial.tokens_per_sample or None


def _ranks_cpu_s(trial: Trial) -> float | None:
    """Return the CPU seconds of all ranks in the timed window as they measured them, None if unknown."""
    per_step = [value for rank in trial.samples.get("cpu_s", []) for value in rank if value is not None]
    return math.fsum(per_step) * _steps(trial) if per_step and _steps(trial) else None
