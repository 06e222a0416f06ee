"""``user``: a model of one's own, named in the suite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from distbench.core.bounds import Count
from distbench.core.user_callables import callable_problem, import_callable, top_modules
from distbench.data.base import DataKind, DataShape
from distbench.workloads._planned_workload import PlannedWorkload
from distbench.workloads.base import at_least_fp32, cross_entropy, model_output
from distbench.workloads.batch_norm import Statistics, convert_batch_norm, device_problem

if TYPE_CHECKING:
    import torch
    from torch import nn

    from distbench.workloads._stage import PipelineCut
    from distbench.workloads.base import Loss
    from distbench.workloads.splits import TensorSplits
    from distbench.workloads.stages import PipelineStages

Style = Literal[
    "colwise",
    "rowwise",
    "embedding_rowwise",
    "colwise_gather_output",
    "replicate",
    "replicated_with_grad_allreduce",
]
"""Tensor-parallel style of a module, in the terms of transformers."""

_SEQUENCE = "the module may compute positions and masks as if the positions of a rank were a whole row"


@dataclass(frozen=True)
class UserModel(PlannedWorkload):
    """A model of one's own: ``package.module:callable`` returns the nn.Module.

    A suite that names a callable is a program: running it runs that code. The module is called
    with the tensors that ``kind`` names, in that order, and returns logits with the classes last.
    Every rank builds it on the CPU and loads the same weights into it.
    """

    on_meta = False

    model: str
    """``package.module:callable``; called without arguments it returns the nn.Module."""
    loss_function: str | None = None
    """``package.module:callable`` of (module, batch) that returns the mean loss or, if rows count unequally,
    the sum and the number of its terms as two scalar tensors; null: cross-entropy. It must call only the
    module itself, because each strategy wraps the module differently."""
    kind: DataKind = "tokens"
    """Arguments of the module. tokens and masked_tokens: input_ids (rows, length). pairs: input_ids (rows,
    length) and decoder_input_ids (rows, target_length). features: features (rows, length). images:
    pixel_values (rows, channels, image_size, image_size). The first three have labels of the tokens, -100 for
    tokens that are not masked; the other two have one label per row."""
    length: Count = 128
    """Tokens, or features, in one sample; of pairs tokens of the source. Images have image_size instead."""
    classes: Count = 256
    """Vocabulary size, or number of classes. The last id of masked_tokens stands for what is masked."""
    layer_classes: tuple[str, ...] = ()
    """Classes of the modules to shard and checkpoint one by one; empty: the items of the module's
    largest nn.ModuleList."""
    target_length: Count | None = field(default=None, metadata={"since": 4})
    """Tokens of the target of pairs; null: 128."""
    image_size: Count | None = field(default=None, metadata={"since": 4})
    """Pixels of a side of images; null: 32."""
    channels: Count | None = field(default=None, metadata={"since": 4})
    """Channels of images; null: 3."""

    count_function: str | None = field(default=None, metadata={"since": 4})
    """``package.module:callable`` of (batch) that returns the number that ``loss_function`` returns beside
    its sum, known before the forward pass; null: the labels other than -100."""
    batch_norm: Statistics | None = field(default=None, metadata={"since": 4})
    """Statistics of BatchNorm where ranks have rows of their own. per_rank: meant to be those of the rows
    that a rank has at a time, so trainings are compared with one process that divides the batch as they do.
    sync: those of all ranks, by torch's SyncBatchNorm, on GPUs. null: as the model is, compared with one
    process that has the whole batch."""

    tp_plan: dict[str, Style] | None = field(default=None, metadata={"since": 4})
    """How tensor parallelism splits the module, in the notation of transformers' base_model_tp_plan: names of
    modules (* stands for any number), and how each is split. colwise, a linear layer by its outputs; rowwise,
    by its inputs; embedding_rowwise, the embedding by ids; colwise_gather_output, the head by ids; replicate,
    not at all; replicated_with_grad_allreduce, a norm over each head. null: it is not split."""
    pp_plan: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] | None = field(
        default=None, metadata={"since": 4}
    )
    """How a pipeline splits the module, in the notation of transformers' base_model_pp_plan: names of modules
    in the order in which they run, each with the names of what it takes and of what it gives. One is the
    nn.ModuleList of layers. null: it is not split."""

    @classmethod
    def default_data_for(cls, options: Mapping[str, Any]) -> str:
        """Digits for features and images, text for the others."""
        return "digits" if options.get("kind") in ("features", "images") else "text"

    @property
    def shape(self) -> DataShape:
        if self.kind == "images":
            shape = DataShape("images", self.image_size or 32, self.classes, channels=self.channels or 3)
        else:
            target = (self.target_length or 128) if self.kind == "pairs" else 0
            shape = DataShape(self.kind, self.length, self.classes, target)
        return replace(shape, takes_any_arrays=self.loss_function is not None)

    def problem(self) -> str | None:
        names = {
            "model": self.model,
            "loss_function": self.loss_function,
            "count_function": self.count_function,
        }
        problems = [
            f"{option} = {name!r}: {problem}"
            for option, name in names.items()
            if name is not None and (problem := callable_problem(name))
        ]
        problems += [
            f"{option} is only used with kind: {kind}, but kind = {self.kind}; remove it"
            for option, kind in {
                "target_length": "pairs",
                "image_size": "images",
                "channels": "images",
            }.items()
            if getattr(self, option) is not None and self.kind != kind
        ]
        if self.pp_plan is not None and self.layer_classes:
            problems.append("layer_classes: pp_plan already names the layers; remove layer_classes")
        if self.kind == "images" and self.length != type(self).length:
            problems.append("length is not used with kind: images; remove it, or set image_size")
        return "; ".join(problems) or None

    def with_length(self, length: int) -> UserModel:
        return replace(self, length=length)

    def device_problem(self, device: str) -> str | None:
        return device_problem(self.batch_norm, device)

    def user_modules(self) -> tuple[str, ...]:
        names = (self.model, self.loss_function, self.count_function)
        return (*super().user_modules(), *top_modules(names))

    def module(self) -> nn.Module:
        """Create the user's module.

        Raises:
            ValueError: the callable can't be imported, raises, or returns something else, or a plan does not
                fit the module.
        """
        from torch import nn

        from distbench.workloads._user_plans import check_plans

        for option in ("loss_function", "count_function"):
            # misspelled names are reported before anything is built
            if (name := getattr(self, option)) is not None:
                import_callable(option, name)
        make = import_callable("model", self.model)
        try:
            module = make()
        except Exception as error:
            # user code: whatever it raises is reported with the option that named it
            raise ValueError(f"model = {self.model!r} raised {type(error).__name__}: {error}") from error
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"model = {self.model!r} returned {type(module).__name__}; it must return an nn.Module"
            )
        check_plans(module, self.tp_plan or (), self.pp_plan, self.shape)
        return convert_batch_norm(module, self.batch_norm)

    @property
    def reads_model(self) -> bool:
        return self.pp_plan is not None and super().reads_model

    def tensor_splits(self) -> TensorSplits | None:
        return None if self.tp_plan is None else super().tensor_splits()

    def pipeline_stages(self) -> PipelineStages | None:
        return None if self.pp_plan is None else super().pipeline_stages()

    def plan_fields(self, module: nn.Module) -> dict[str, Any]:
        uncut = "it has no pp_plan" if self.pp_plan is None else ""
        return {"tensor_plan": self.tp_plan or {}, "uncut": uncut, "sequence": _SEQUENCE}

    def pipeline_cut(self, module: nn.Module) -> PipelineCut:
        from distbench.workloads._user_plans import pipeline_cut

        return pipeline_cut(module, self.pp_plan or {})

    def layers(self, module: nn.Module) -> list[nn.Module]:
        """Layers of ``pp_plan``, modules of ``layer_classes``, or the items of the largest nn.ModuleList.

        Raises:
            ValueError: the module has none of a class that ``layer_classes`` names.
        """
        from torch import nn

        from distbench.workloads._user_plans import planned_layers

        if self.pp_plan is not None:
            return planned_layers(module, self.pp_plan)
        if not self.layer_classes:
            lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
            return list(max(lists, key=lambda part: sum(p.numel() for p in part.parameters()), default=()))
        present = {type(part).__name__ for part in module.modules()}
        absent = sorted(set(self.layer_classes) - present)
        if absent:
            raise ValueError(
                f"layer_classes: the module of {self.model!r} has no {', '.join(absent)}; "
                f"it has {', '.join(sorted(present))}"
            )
        return [part for part in module.modules() if type(part).__name__ in self.layer_classes]

    def loss(self, module: nn.Module, batch: dict[str, torch.Tensor]) -> Loss:
        """Loss of ``loss_function``, or the mean cross-entropy over the last dimension.

        Raises:
            ValueError: the user's loss is of another form, or the logits don't fit the labels.
        """
        if self.loss_function is None:
            return self._cross_entropy(module, batch)
        loss = import_callable("loss_function", self.loss_function)(module, batch)
        if isinstance(loss, tuple | list) and len(loss) == 2 and _is_scalar(loss[0]):
            return at_least_fp32(loss[0]), _integer_count("loss_function", self.loss_function, loss[1])
        if not _is_scalar(loss):
            raise ValueError(
                f"loss_function = {self.loss_function!r} returned {_type_text(loss)}; it must return a "
                "scalar tensor, or two: a sum and the number of its terms"
            )
        return at_least_fp32(loss)

    def loss_denominator(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Result of ``count_function``, or the number of labels that are not ignored.

        Raises:
            ValueError: the user's count is no integer.
        """
        if self.count_function is None:
            return super().loss_denominator(batch)
        count = import_callable("count_function", self.count_function)(batch)
        return _integer_count("count_function", self.count_function, count)

    def _cross_entropy(self, module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        labels = batch["labels"]
        logits = model_output(module, batch, self.shape.inputs)
        wanted = (*labels.shape, self.classes)
        if getattr(logits, "shape", None) != wanted:
            returned = tuple(logits.shape) if hasattr(logits, "shape") else type(logits).__name__
            raise ValueError(
                f"the module of model = {self.model!r} returned {returned}, but must return logits of "
                f"shape {wanted}: (rows, length, classes) for tokens and masked_tokens, (rows, "
                "target_length, classes) for pairs, (rows, classes) for features and images; or set "
                "loss_function"
            )
        return cross_entropy(logits, labels)


def _is_scalar(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.ndim == 0


def _integer_count(option: str, name: str, value: Any) -> torch.Tensor:
    """Count *value* that the callable *name* of *option* returned, as an integer scalar tensor.

    Raises:
        ValueError: it is not an integer.
    """
    import torch

    count = torch.tensor(value) if isinstance(value, int) else value
    if not _is_scalar(count) or count.is_floating_point() or count.is_complex():
        raise ValueError(
            f"{option} = {name!r} returned {_type_text(value)} as a count; it must be an integer"
        )
    return count.to(torch.int64)


def _type_text(value: Any) -> str:
    """Describe *value* in an error message."""
    if _is_scalar(value):
        return f"a scalar of {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {', '.join(map(_type_text, value)) or 'nothing'}"
    return f"shape {tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__
