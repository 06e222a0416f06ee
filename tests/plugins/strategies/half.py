from __future__ import annotations

from dataclasses import dataclass, replace

from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.strategies.base import RankContext
from distbench.strategies.engine import Engine
from distbench.strategies.zero import Zero


@dataclass(frozen=True)
class Half(Zero):
    """DeepSpeed in fp16 on a CPU: only its accelerator refuses that, so what it does with it shows here."""

    @property
    def label(self) -> str:
        return f"half-{super().label}"

    def problem(self, case: Case, machine: Machine) -> str | None:
        as_bf16 = replace(case.precision, compute="bf16", loss_scale=None)
        return super().problem(replace(case, precision=as_bf16), machine)

    def build(self, context: RankContext) -> Engine:
        from deepspeed.accelerator import get_accelerator

        type(get_accelerator()).is_fp16_supported = lambda _: True
        return super().build(context)
