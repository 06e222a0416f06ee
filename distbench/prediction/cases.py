"""Prediction of a case: its step time, its peak memory, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.prediction.data_sheet import data_sheet_step
from distbench.prediction.estimates import MemoryPrediction, PredictedValue, StepPrediction
from distbench.prediction.memory import predict_memory
from distbench.prediction.memory_fit import MemoryFit, fits
from distbench.prediction.probed_rates import probed_rates
from distbench.prediction.probed_step import probed_step
from distbench.record import Record
from distbench.system.gpu_data_sheets import DATA_SHEETS
from distbench.workloads.base import workload_of


@dataclass(frozen=True)
class CasePrediction:
    """Prediction of a case that can run."""

    case: Case
    step: StepPrediction | str
    """Time of a step, or the reason why it can't be told."""
    memory: MemoryPrediction | str
    """Peak memory of a rank, or the reason why no formula has it."""
    peak_flops: float | None = None
    """FLOP/s of a device in the dtype of the case, as published; None: unknown."""
    fits: MemoryFit | None = None
    """Whether the ranks of a device, or of a node with CPUs, fit in its memory; None: unknown."""

    @property
    def tokens_per_s(self) -> PredictedValue | None:
        """Tokens that all devices train on in a second; None: the time of a step is unknown."""
        if isinstance(self.step, str):
            return None
        tokens = self.case.batch.global_batch_size * workload_of(self.case).tokens_per_sample
        return self.step.seconds.rate_of(tokens)

    @property
    def flops_per_device(self) -> PredictedValue | None:
        """Model FLOP/s of a device; None: the step, or the FLOPs of the model, are unknown."""
        flops = workload_of(self.case).flops_per_sample()
        if isinstance(self.step, str) or flops is None:
            return None
        samples = self.case.batch.global_batch_size / self.case.world_size
        return self.step.seconds.rate_of(flops * samples)

    @property
    def mfu(self) -> PredictedValue | None:
        """Model FLOPs utilization, a fraction (PaLM, arXiv 2204.02311, appendix B); None: unknown."""
        reached, peak = self.flops_per_device, self.peak_flops
        if reached is None or peak is None:
            return None
        return PredictedValue(*(each / peak for each in (reached.value, reached.low, reached.high)))


def predict_from_probe(case: Case, machine: Machine | None, records: Iterable[Record]) -> CasePrediction:
    """Prediction of *case* from a probe among the *records* of a run.

    *machine* has the nodes and the memory that it would run on; None: unknown.
    """
    rates, memory = probed_rates(case, records, machine), predict_memory(case)
    step = rates if isinstance(rates, str) else probed_step(case, rates)
    return CasePrediction(case, step, memory, None, _fit(case, memory, machine))


def predict_from_data_sheet(case: Case, machine: Machine) -> CasePrediction:
    """Prediction of *case* on the GPUs of *machine*, from what is published of their type."""
    sheet, precision = DATA_SHEETS.get(machine.gpu_type), case.precision
    peak = sheet.peak.for_dtype(precision.compute, tf32=precision.matmul == "high") if sheet else None
    memory = predict_memory(case)
    return CasePrediction(case, data_sheet_step(case, machine), memory, peak, _fit(case, memory, machine))


def _fit(case: Case, memory: MemoryPrediction | str, machine: Machine | None) -> MemoryFit | None:
    return None if machine is None or isinstance(memory, str) else fits(memory, case, machine)
