"""The seam of workloads: a model, its loss, and what it costs by formula."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from distbench.data.base import Shape

if TYPE_CHECKING:
    import torch
    from torch import nn


class Workload(ABC):
    """A model to train. A frozen dataclass: its fields are its options in YAML."""

    imports: ClassVar[tuple[str, ...]] = ()
    """Modules worth importing once in the warm parent of the ranks, besides torch."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Distributions that must be installed, besides torch."""
    default_data: ClassVar[str] = "text"
    """The data source when a suite names none."""
    on_meta: ClassVar[bool] = True
    """Whether ``module`` can be built on the meta device (no draw or data access decides its shape)."""

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """What the model wants of its data."""

    @property
    @abstractmethod
    def tokens_per_sample(self) -> int:
        """Tokens in one sample (1 where a sample is no sequence)."""

    def problem(self) -> str | None:
        """Return what is impossible about the options (heads that don't divide), or None.

        Runs in the parent before launch, without torch.
        """
        return None

    @abstractmethod
    def parameters(self) -> int | None:
        """Return the number of trainable parameters by formula, or None if there is no formula."""

    @abstractmethod
    def flops_per_sample(self) -> int | None:
        """Return model FLOPs of forward and backward for one sample, or None if there is no formula.

        PaLM (arXiv 2204.02311) appendix B: no recomputation, no causal discount.
        """

    @abstractmethod
    def module(self) -> nn.Module:
        """Return the model on the current default device (meta too). Runs in the worker."""

    @abstractmethod
    def layers(self, module: nn.Module) -> list[nn.Module]:
        """Return the submodules that are sharded, and checkpointed, one by one."""

    @abstractmethod
    def loss(self, module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean loss of *batch*, in fp32 at least; *module* may be wrapped: only call it."""


PLUGIN_BASE = Workload
