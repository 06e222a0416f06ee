"""What is known of one optimizer, and of a tensor that it updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from distbench.core.case import Optimizer, OptimizerName

Cut = Literal["whole", "rows", "flat"]
"""What a strategy hands to an optimizer: whole tensors; rows of each, as distributed tensors (DTensor), whose
operations gather what they need of the others; or flat pieces, which know nothing of rows and tensors."""


VARIANTS = ("amsgrad", "maximize", "nesterov", "dampening", "decoupled_weight_decay")
"""Options of classes that change the algorithm: reported by name where they are on."""


@dataclass(frozen=True)
class Weight:
    """What the memory theory knows of a trained tensor."""

    shape: tuple[int, ...]
    is_hidden: bool = False
    """A matrix inside one of the workload's layers: neither embedding nor output head."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


StateBytes = Callable[[Optimizer, Weight, int], float]
"""Bytes that an optimizer keeps for a tensor, where a number of its states has so many bytes."""


@dataclass(frozen=True)
class Kind:
    """One optimizer."""

    public: str
    """Its class as users import it."""
    arguments: Callable[[Optimizer], dict[str, Any]]
    """All hyper-parameters that its class is given, those that a suite can't change included."""
    keys: tuple[str, ...]
    """Keys of a suite that the live one must have as they stand: said twice, so that a slip in one shows."""
    state: StateBytes
    keys_inside: tuple[str, ...] = ()
    """Keys of a suite that are a part of one of its arguments, or that only the optimizer of its rest has."""
    kernels: tuple[str, ...] = ("fused", "foreach", "loop")
    """Implementations that it has, the usual one first."""
    usual: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of keys of ``optimizer`` that differ from everybody else's."""
    package: str = "torch"
    """Distribution that has it."""
    needs: str = ""
    """What it can't compute from flat pieces of tensors; empty: it treats every element by itself."""
    fails_on_rows: str = ""
    """Why it can't be stepped on distributed tensors, or would be another one; empty: it can."""
    computes_in: Literal["", "bf16"] = ""
    """Dtype in which it computes updates, whatever that of the weights; empty: in theirs."""
    module: str = ""
    """Module that the live class says it is of, where users import it from another one."""
    is_compiled: bool = False
    """Whether torch compiles its step, which takes a compiler, and time in the first one."""
    rest: OptimizerName | None = None
    """Name of the optimizer of all but hidden matrices; None: it updates everything itself."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Distributions that it needs besides torch, for which a strategy asks if it needs any."""
        return () if self.package == "torch" else (self.package,)

    @property
    def name(self) -> str:
        """Name of its class."""
        return self.public.rpartition(".")[2]

    @property
    def cls(self) -> str:
        """Qualified name of the live class."""
        return f"{self.module}.{self.name}" if self.module else self.public

    def flags(self, spec: Optimizer) -> dict[str, bool]:
        """Arguments that choose the kernel, among those that it has."""
        return {kernel: spec.kernel == kernel for kernel in self.kernels if kernel != "loop"}

    @property
    def reads(self) -> tuple[str, ...]:
        """Keys of a suite that are hyper-parameters of it."""
        return self.keys + self.keys_inside
