"""Base class of strategies that run on DeepSpeed's engine. Imports no torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import ClassVar

from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.strategies._deepspeed import ops
from distbench.strategies.base import Strategy
from distbench.system.machine import ops_folder, package_versions

# modules that deepspeed.initialize would import in every rank of every trial
_ENGINE_IMPORTS = (
    "distbench.strategies._deepspeed.package_import",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.runtime.zero.muon.original_muon",
    "torch._inductor.compile_fx",
    "distbench.strategies.zero.engine",
)
_OP_PROBE = "distbench.strategies._deepspeed.op_probe"


class DeepSpeedStrategy(Strategy):
    """Base of DeepSpeed strategies: environment, C++ ops and leftover files."""

    packages: ClassVar[tuple[str, ...]] = ("torch", "deepspeed")

    @property
    def leftovers(self) -> tuple[str, ...]:
        # DeepSpeed's CPU backend never unlinks its all-reduce buffers: 66 MiB per rank and trial
        return ("/dev/shm/deepspeed_allreduce_buffer_*_{port}_*",)

    def imports(self, case: Case) -> tuple[str, ...]:
        # listing the op builders asks CUDA for its version, so on GPUs the ranks do that themselves
        builders = ("deepspeed.ops.op_builder.all_ops", "deepspeed.comm.mori", _OP_PROBE)
        return (*_ENGINE_IMPORTS, *(builders if case.device == "cpu" else ()))

    def environment(self, case: Case) -> dict[str, str]:
        return {
            # by default DeepSpeed picks the accelerator by what it can import, not by what was requested
            "DS_ACCELERATOR": case.device,
            "TORCH_EXTENSIONS_DIR": self.extensions_folder(case.device),
            "DEEPSPEED_LOG_LEVEL": "warning",
        }

    def extensions_folder(self, device: str) -> str:
        """Folder of DeepSpeed's built ops, in place of its default, which all environments share."""
        return str(ops_folder(sys.prefix, package_versions(), device))

    def op_builders(self, case: Case) -> list[str]:
        """DeepSpeed's builders of the C++ ops that *case* uses."""
        return ["ShareMemCommBuilder"] if case.device == "cpu" else []

    def toolchain_problem(self, case: Case, machine: Machine) -> str | None:
        """Reason why *machine* can't build or load the ops of *case*; None if it can."""
        folder = ops_folder(machine.prefix, machine.packages, case.device)
        return ops.toolchain_problem(self.op_builders(case), folder, machine)

    def build_name(self, case: Case) -> str:
        builders = self.op_builders(case)
        return f"DeepSpeed's C++ ops {ops.op_names(builders)}" if builders else ""

    def prepare(self, case: Case) -> list[str]:
        return ops.build_ops(self.op_builders(case), _extensions_folder())

    def preload_ops(self, case: Case) -> None:
        """Preload the prepared ops into DeepSpeed, in a rank."""
        ops.preload_ops(self.op_builders(case), _extensions_folder())


def _extensions_folder() -> Path:
    """Folder in which ranks look for ops, whichever interpreter this is."""
    return Path(os.environ["TORCH_EXTENSIONS_DIR"])
