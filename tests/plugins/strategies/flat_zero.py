from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.strategies.zero import Zero


@dataclass(frozen=True)
class FlatZero(Zero):
    """ZeRO with whatever optimizer is asked for: what its refusals keep from happening shows here."""

    @property
    def label(self) -> str:
        return f"flat-{super().label}"

    def problem(self, case: Case, machine: Machine) -> str | None:
        asked = dataclasses.replace(case, optimizer=dataclasses.replace(case.optimizer, name="adamw"))
        return super().problem(asked, machine)
