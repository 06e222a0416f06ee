"""Probes with the rates of a run: those that ran on devices like its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distbench.analysis.run import RunAnalysis
from distbench.core.units import join_words
from distbench.prediction.probed_hardware import device_model, hardware_text
from distbench.prediction.probed_rates import PROBE
from distbench.record import Record, Status, records_of_kind

_UNKNOWN = "devices that were not recorded"


@dataclass(frozen=True)
class RunProbes:
    """Probes of a run and of others, by whether they ran on the model of GPU or CPU of its trials."""

    devices: str
    """Model that the run was measured on, for people."""
    used: Mapping[str, Sequence[Record]]
    """Name of a run -> its probes on that model, and those that have measured nothing."""
    left_out: Mapping[str, Sequence[Record]]
    """Name of a run -> its probes on other models."""

    @classmethod
    def of(cls, run: RunAnalysis, others: Mapping[str, Sequence[Record]] | None = None) -> RunProbes:
        """Probes of *run*, and those among the records of *others*, by the names of their runs."""
        models = {
            (each.case.device, device_model(each)): None
            for each in run.timed_records
            if each.status is Status.MEASURED
        }
        used: dict[str, list[Record]] = {}
        left_out: dict[str, list[Record]] = {}
        for name, records in {run.info.run_id: run.records, **(others or {})}.items():
            for probe in records_of_kind(records, PROBE):
                place = probe.case.device, device_model(probe)
                fits = place in models or probe.status is not Status.MEASURED
                (used if fits else left_out).setdefault(name, []).append(probe)
        names = [name or _UNKNOWN for _, name in models]
        return cls(join_words(names) if names else _UNKNOWN, used, left_out)

    @property
    def records(self) -> list[Record]:
        """Probes on the devices of the run."""
        return [probe for probes in self.used.values() for probe in probes]

    @property
    def used_text(self) -> str:
        """Runs with probes on the devices of the run, each with its hardware."""
        return "; ".join(f"{name}{hardware_text(probes)}" for name, probes in self.used.items())

    def mismatch(self, name: str) -> str:
        """Devices of the probes of the run *name* that are left out, and those of the run; empty: none is."""
        if name not in self.left_out:
            return ""
        theirs = hardware_text(self.left_out[name]).removeprefix(", on ") or _UNKNOWN
        return f"ran on {theirs}, and the run was measured on {self.devices}"
