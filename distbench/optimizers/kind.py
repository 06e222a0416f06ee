"""What is known of one optimizer, and of a tensor that it updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from distbench.core.case import OptimizerConfig, OptimizerName

TensorLayout = Literal["whole", "rows", "flat"]
"""What a strategy hands to an optimizer: whole tensors; rows of each, as distributed tensors (DTensor), whose
operations gather what they need of the others; or flat pieces, which know nothing of rows and tensors."""


ALGORITHM_FLAGS = ("amsgrad", "maximize", "nesterov", "dampening", "decoupled_weight_decay")
"""Options of classes that change the algorithm: reported by name where they are on."""


@dataclass(frozen=True)
class ParameterShape:
    """What the memory theory knows of a trained tensor."""

    shape: tuple[int, ...]
    is_layer_matrix: bool = False
    """A matrix inside one of the workload's layers: neither embedding nor output head."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


StateBytesRule = Callable[[OptimizerConfig, ParameterShape, int], float]
"""Bytes that an optimizer keeps for a tensor, where a number of its states has so many bytes."""


@dataclass(frozen=True)
class OptimizerEntry:
    """One optimizer."""

    import_path: str
    """Its class as users import it."""
    hyper_parameters: Callable[[OptimizerConfig], dict[str, Any]]
    """All hyper-parameters that its class is given, those that a suite can't change included."""
    checked_keys: tuple[str, ...]
    """Keys of a suite that the live one must have as they stand: said twice, so that a slip in one shows."""
    state_bytes: StateBytesRule
    embedded_keys: tuple[str, ...] = ()
    """Keys of a suite that are a part of one of its arguments, or that only the optimizer of its rest has."""
    kernels: tuple[str, ...] = ("fused", "foreach", "loop")
    """Implementations that it has, the usual one first."""
    own_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of keys of ``optimizer`` that differ from everybody else's."""
    package: str = "torch"
    """Distribution that has it."""
    needs_full_tensors: str = ""
    """What it can't compute from flat pieces of tensors; empty: it treats every element by itself."""
    dtensor_problem: str = ""
    """Why it can't be stepped on distributed tensors, or would be another one; empty: it can."""
    compute_dtype: Literal["", "bf16"] = ""
    """Dtype in which it computes updates, whatever that of the weights; empty: in theirs."""
    live_module: str = ""
    """Module that the live class says it is of, where users import it from another one."""
    is_compiled: bool = False
    """Whether torch compiles its step, which takes a compiler, and time in the first one."""
    companion: OptimizerName | None = None
    """Name of the optimizer of all but hidden matrices; None: it updates everything itself."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Distributions that it needs besides torch, for which a strategy asks if it needs any."""
        return () if self.package == "torch" else (self.package,)

    @property
    def class_name(self) -> str:
        """Name of its class."""
        return self.import_path.rpartition(".")[2]

    @property
    def live_class(self) -> str:
        """Qualified name of the live class."""
        return f"{self.live_module}.{self.class_name}" if self.live_module else self.import_path

    def kernel_flags(self, spec: OptimizerConfig) -> dict[str, bool]:
        """Arguments that choose the kernel, among those that it has."""
        return {kernel: spec.kernel == kernel for kernel in self.kernels if kernel != "loop"}

    @property
    def setting_keys(self) -> tuple[str, ...]:
        """Keys of a suite that are hyper-parameters of it."""
        return self.checked_keys + self.embedded_keys
