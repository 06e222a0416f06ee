"""Catalog entry of an optimizer, and the shapes of the tensors that it updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from distbench.core.case import OptimizerConfig, OptimizerName

TensorLayout = Literal["whole", "rows", "flat"]
"""Layout in which a strategy passes tensors to an optimizer. whole: full tensors. rows: rows of each as
distributed tensors (DTensor), whose operations gather what they need of the other rows. flat: flat pieces
without the rows and boundaries of tensors."""


ALGORITHM_FLAGS = ("amsgrad", "maximize", "nesterov", "dampening", "decoupled_weight_decay")
"""Options of optimizer classes that change the algorithm; those that are on are reported by name."""


@dataclass(frozen=True)
class ParameterShape:
    """Shape of a trained tensor, as far as the memory theory needs it."""

    shape: tuple[int, ...]
    is_layer_matrix: bool = False
    """True for a matrix inside one of the workload's layers: neither embedding nor output head."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


StateBytesRule = Callable[[OptimizerConfig, ParameterShape, int], float]
"""Function that returns the state bytes of a tensor, for a given number of bytes per element."""


@dataclass(frozen=True)
class OptimizerEntry:
    """One optimizer of the catalog."""

    import_path: str
    """Import path of its class, as users import it."""
    hyper_parameters: Callable[[OptimizerConfig], dict[str, Any]]
    """All hyper-parameters passed to its class, including those that a suite can't change."""
    checked_keys: tuple[str, ...]
    """Keys of a suite that the live optimizer must have unchanged: specified twice, so that a slip in one
    shows."""
    state_bytes: StateBytesRule
    embedded_keys: tuple[str, ...] = ()
    """Keys of a suite that are part of one of its arguments, or that only its companion optimizer has."""
    kernels: tuple[str, ...] = ("fused", "foreach", "loop")
    """Implementations that it has, the default first."""
    own_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of keys of ``optimizer`` that differ from those of the other optimizers."""
    package: str = "torch"
    """Distribution that contains it."""
    needs_full_tensors: str = ""
    """Quantity that it can't compute from flat pieces of tensors; empty: it is element-wise."""
    dtensor_problem: str = ""
    """Reason why it can't step distributed tensors, or would compute other updates; empty: it can."""
    compute_dtype: Literal["", "bf16"] = ""
    """Dtype in which it computes updates, regardless of the dtype of the weights; empty: that of the
    weights."""
    live_module: str = ""
    """Value of ``__module__`` of the live class, if it differs from the module that users import."""
    is_compiled: bool = False
    """True if torch compiles its step, which needs a compiler, and time in the first step."""
    companion: OptimizerName | None = None
    """Name of the optimizer that updates everything except hidden matrices; None: it updates everything
    itself."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Distributions that it needs besides torch; strategies add them to their own."""
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
        """Keys of a suite that are hyper-parameters of this optimizer."""
        return self.checked_keys + self.embedded_keys
