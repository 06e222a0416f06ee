"""Base of workload plug-ins: model, loss, FLOPs, and the ways to split the model."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from distbench.core import registry
from distbench.data.base import IGNORE_INDEX, POSITION_IDS, DataShape
from distbench.workloads.layer_shapes import LayerShapes
from distbench.workloads.layouts import ModelLayout, WorkloadWithLayout

if TYPE_CHECKING:
    import torch
    from torch import nn

    from distbench.core.case import Case
    from distbench.core.machine import Machine
    from distbench.workloads._dimensions import Dimensions
    from distbench.workloads.context import AttentionWrapper, ContextSplit
    from distbench.workloads.mixture import ExpertLayers
    from distbench.workloads.module_calls import ModuleCall
    from distbench.workloads.operations import ModelOperations, RowSplit
    from distbench.workloads.splits import TensorSplits
    from distbench.workloads.stages import PipelineStages

Loss: TypeAlias = "torch.Tensor | tuple[torch.Tensor, torch.Tensor]"
"""Mean loss of a batch, or a sum over its counted items (labels, say) and their number."""


class Workload(ABC):
    """A model to train. A frozen dataclass: its fields are its options in YAML."""

    imports: ClassVar[tuple[str, ...]] = ()
    """Modules worth importing once in the fork server, besides torch."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Distributions that must be installed, besides torch."""
    default_data: ClassVar[str] = "text"
    """Data source if a suite names none, whatever the options."""
    reads_layout: ClassVar[bool] = False
    """True if ``model_layout`` reads its model, and ``with_layout`` takes what it read."""
    has_biases: ClassVar[bool | None] = None
    """True if each matrix of ``tensor_shapes`` is followed by its bias, False if none is; None: not told."""
    on_meta: ClassVar[bool] = True
    """True if ``module`` can be built on the meta device (no draw or data access decides its shape)."""

    @classmethod
    def default_data_for(cls, options: Mapping[str, Any]) -> str:  # noqa: ARG003 - for workloads of several kinds
        """Name of the data source if a suite names none, for a workload with these *options*."""
        return cls.default_data

    @property
    @abstractmethod
    def shape(self) -> DataShape:
        """Shape of the data that the model takes."""

    def resolved_for(self, machine: Machine) -> Workload:
        """The workload with machine-dependent options resolved for *machine*, as cases have it."""
        return self

    @property
    def reads_model(self) -> bool:
        """True if ``tensor_splits`` and ``pipeline_stages`` construct the model, in a process with torch."""
        return False

    @property
    def tokens_per_sample(self) -> int:
        """Tokens in one sample (1 where a sample is no sequence)."""
        return self.shape.tokens

    def problem(self) -> str | None:
        """Problem with the options (heads that don't divide), or None; called without torch."""
        return None

    def device_problem(self, device: str) -> str | None:
        """Reason why *device* (``cpu``, ``cuda``) can't run the options; None if it can."""
        return None

    def user_modules(self) -> tuple[str, ...]:
        """Names of modules with the user's own code, whose lines are searched for in an error.

        For a plug-in, its own module; none for a workload of distbench.
        """
        module = type(self).__module__
        return () if module.startswith("distbench.") else (module,)

    def with_layout(self, layout: ModelLayout) -> Workload:
        """The workload with the *layout* of its model, which ranks have read, for theory."""
        return self

    def parameters(self) -> int | None:
        """Number of trainable parameters by formula, or None if there is no formula."""
        return None

    @property
    def decoder_dimensions(self) -> Dimensions | None:
        """Dimensions of the model, if it is a decoder whose blocks are those of ``transformer``."""
        return None

    @property
    def decoder_problem(self) -> str:
        """Reason why ``decoder_dimensions`` is None, where there is more to say than that; else empty."""
        return ""

    def tensor_shapes(self) -> tuple[tuple[int, ...], ...] | None:
        """Shapes of all trained parameters by formula, or None if there is no formula.

        In the order of ``Module.parameters``, in which a forward pass also uses them first: gradients become
        ready in the reverse order.
        """
        return None

    def layer_shapes(self) -> LayerShapes | None:
        """``tensor_shapes`` by layer; None: they, or the division into layers, have no formula."""
        shapes, stages = self.tensor_shapes(), self.pipeline_stages()
        if shapes is None or stages is None or stages.unsupported_reason:
            return None
        return LayerShapes.in_order(shapes, stages.embedding_parameters, stages.layer_parameters)

    def module_calls(self) -> ModuleCall | None:
        """Call of the model by a forward pass, with the calls inside it; None: not told."""
        return None

    def reduced_options(self) -> Iterator[dict[str, Any]]:
        """Yield options with less and less work for the same code.

        Fewer layers of the same kinds, shorter rows; what remains is compared. Empty: there are none.
        """
        return iter(())

    def with_length(self, length: int) -> Workload | None:
        """The workload for samples of *length* tokens; None: it is unknown how it depends on that."""
        return None

    def variable_length_problem(self) -> str | None:
        """Reason why its loss depends on how tokens are laid out in rows; None if it does not.

        Then rows can neither be filled up to the longest of a micro-batch nor packed.
        """
        return None

    def takes_position_ids(self, module: nn.Module) -> bool:
        """True if *module*, without wrappers, takes the place of each token in its document by keyword."""
        return takes_keyword(module, POSITION_IDS)

    def flops_per_sample(self) -> int | None:
        """Model FLOPs of forward and backward for one sample, or None if there is no formula.

        PaLM (arXiv 2204.02311) appendix B: no recomputation, no causal discount.
        """
        return None

    def recomputed_flops_per_sample(self) -> int | None:
        """Model FLOPs that ``activation_checkpointing: full`` recomputes for one sample, or None.

        The forward pass of ``layers``, up to where torch stops it: at the last tensor that the
        backward pass needs, so the product that ends a layer is not recomputed. None: no formula.
        """
        return None

    def operations(self, split: RowSplit) -> ModelOperations | None:
        """Operations of a micro-batch on a rank, with the tensors that each keeps; None: unknown."""
        return None

    def tensor_splits(self) -> TensorSplits | None:
        """Split inside the layers of the model (tensor parallelism); None if it can't be split."""
        return None

    def expert_layers(self) -> ExpertLayers | None:
        """Layers of experts that tokens are sent to (expert parallelism); None if there are none."""
        return None

    def pipeline_stages(self) -> PipelineStages | None:
        """Split between the layers of the model (pipeline parallelism); None if it can't be split."""
        return None

    def build_stage(self, module: nn.Module, layers: range) -> nn.Module:
        """Stage of *module* with *layers* of ``pipeline_stages``: its submodules under the same names.

        It takes the output of the layer before, and returns the input of the next one. The method ``layers``
        finds its layers as it finds those of the whole module.

        Raises:
            NotImplementedError: a plug-in has ``pipeline_stages`` but does not build them.
        """
        raise NotImplementedError(f"{type(self).__name__} has pipeline_stages(), but no build_stage()")

    def context_split(self) -> ContextSplit | None:
        """Split of rows by position (context parallelism); None if they can't be split."""
        return None

    def shard_sequence(
        self, module: nn.Module, positions: torch.Tensor, wrap_attention: AttentionWrapper
    ) -> None:
        """Let *module*, still unwrapped, work on some *positions* of each row, as ``context_split`` says.

        Args:
            positions: Indices in the row of the positions that it gets, from 0.
            wrap_attention: Turns an attention over whole rows into one over a part of them.

        Raises:
            NotImplementedError: a plug-in has a ``context_split`` but does not shard its rows.
        """
        raise NotImplementedError(f"{type(self).__name__} has context_split(), but no shard_sequence()")

    @abstractmethod
    def module(self) -> nn.Module:
        """Model on the current default device (meta too). Runs in the worker."""

    def pretrained(self) -> nn.Module | None:
        """Model on the CPU with the weights that every case starts with; None: they are drawn.

        It has the parameters and buffers of ``module``. Runs once, before the cases.
        """
        return None

    @abstractmethod
    def layers(self, module: nn.Module) -> list[nn.Module]:
        """Submodules that are sharded and checkpointed one by one."""

    @abstractmethod
    def loss(self, module: nn.Module, batch: dict[str, torch.Tensor]) -> Loss:
        """Loss of *batch*, at least in fp32; *module* may be wrapped, so only call it.

        A mean, if all parts of a global batch have the same weight. Otherwise the sum and the number of its
        terms, which ``loss_denominator`` also gives for *batch*: engines divide by the number of the whole
        global batch, over all ranks and micro-batches.
        """

    def loss_denominator(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Denominator of a summed ``loss`` of *batch*, known before the forward pass: an integer."""
        return count_labels(batch["labels"])


def model_output(module: nn.Module, batch: dict[str, torch.Tensor], names: Sequence[str]) -> Any:
    """Output of *module* for the arrays *names* of *batch*.

    If rows are packed, it also gets the place of each token in its document, by keyword.
    """
    packed = {POSITION_IDS: batch[POSITION_IDS]} if POSITION_IDS in batch else {}
    return module(*(batch[name] for name in names), **packed)


def takes_keyword(module: nn.Module, name: str) -> bool:
    """True if the forward pass of *module* takes an argument by the keyword *name*."""
    return any(
        each.kind is each.VAR_KEYWORD or (each.name == name and each.kind is not each.POSITIONAL_ONLY)
        for each in inspect.signature(module.forward).parameters.values()
    )


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of *logits* (..., classes) against *labels* (...), in fp32 at least."""
    from torch.nn import functional

    return functional.cross_entropy(at_least_fp32(logits).flatten(0, -2), labels.flatten())


def summed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum whose mean is ``cross_entropy``, and the number of labels in it."""
    from torch.nn import functional

    flat = at_least_fp32(logits).flatten(0, -2)
    return functional.cross_entropy(flat, labels.flatten(), reduction="sum"), count_labels(labels)


def workload_of(case: Case) -> Workload:
    """The workload of *case*, with its options."""
    workload: Workload = registry.create_plugin("workloads", case.workload)
    return (
        workload.with_layout(case.workload.layout)
        if isinstance(case.workload, WorkloadWithLayout)
        else workload
    )


def mean_of(loss: Loss) -> torch.Tensor:
    """Convert *loss* of a batch to a mean over that batch alone."""
    if isinstance(loss, tuple):
        total, count = loss
        return total / count
    return loss


def count_labels(labels: torch.Tensor) -> torch.Tensor:
    """Number of *labels* that ``cross_entropy`` averages over: all except those that torch ignores."""
    return (labels != IGNORE_INDEX).sum()


def at_least_fp32(tensor: torch.Tensor) -> torch.Tensor:
    """*tensor*, in fp32 if its own dtype is shorter."""
    import torch

    return tensor if tensor.dtype == torch.float64 else tensor.float()


PLUGIN_BASE = Workload
HELPERS = (
    "batch_norm",
    "context",
    "hashing",
    "layer_shapes",
    "layouts",
    "mixture",
    "operations",
    "module_calls",
    "shapes",
    "splits",
    "stages",
    "weights",
)
"""Modules of this folder that are shared code, not plug-ins."""
