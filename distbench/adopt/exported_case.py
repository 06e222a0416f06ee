"""Case to export, files that it is exported to, and reasons why no format can express it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from distbench import optimizers
from distbench.core import registry
from distbench.core.case import Case, OptimizerConfig
from distbench.core.errors import SuiteMistake, UsageError
from distbench.core.serialization import decode
from distbench.core.text import one_line
from distbench.strategies.base import Strategy
from distbench.strategies.cp import ContextParallel
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.dp import DataParallel
from distbench.strategies.fsdp import FullyShardedDataParallel
from distbench.strategies.pp import PipelineParallel
from distbench.strategies.single import Single
from distbench.strategies.theory.tensor_parallelism import TensorParallelism
from distbench.strategies.tp import TensorParallel
from distbench.strategies.zero import Zero
from distbench.suite.sections import check_section
from distbench.suite.yaml_reader import key_text

# each format lists those of these that it can't express
_STRATEGIES = (
    *(Single, DataParallel, DistributedDataParallel, FullyShardedDataParallel, TensorParallel),
    *(PipelineParallel, ContextParallel, Zero),
)
_UNSUPPORTED = {
    # torchtitan uses FSDP2 for modules that it does not distribute otherwise
    "ep": "experts distributed over ranks that replicate all other parameters",
    "onebit": "1-bit optimizers, which only DeepSpeed up to 0.19.6 has",
}
FSDP1_STRATEGIES = {"full": "FULL_SHARD", "grad_op": "SHARD_GRAD_OP", "hybrid": "HYBRID_SHARD"}
"""FSDP1's name of each sharding."""


@dataclass(frozen=True)
class ExportedCase:
    """Case to export: with its strategy, every option set, and the settings its live engine reported."""

    case: Case
    strategy: Strategy
    effective: Mapping[str, Any] = field(default_factory=dict)
    nodes: int = 1
    """Number of nodes that the ranks were on."""
    size_notes: tuple[str, ...] = ()
    """Notes on sizes that depend on the model (``sizes``), shown first."""

    @classmethod
    def of(cls, case: Case, effective: Mapping[str, Any]) -> ExportedCase:
        """*case* with its strategy, decoded so that formats only use values of checked types.

        Raises:
            UsageError: this version can't export the strategy, or one of its options is not of its type.
            RecordError: a field of *case* is not of its type.
        """
        case = decode(Case, case.to_json(), one_line(str(case.name)))
        name = case.strategy.name
        plugin = registry.built_in_plugins("strategies").get(name)
        if plugin is None:
            raise UsageError(f"{one_line(name)}: plug-in strategies can't be exported")
        if plugin not in _STRATEGIES:
            raise UsageError(f"{name}: no format can express {_UNSUPPORTED.get(name, 'it')} yet")
        strategy, findings = check_section(plugin, case.strategy.options, ("strategy", name))
        if strategy is None:
            wrong = SuiteMistake(findings[0].message, key_text(findings[0].path), findings[0].value)
            raise UsageError(f"{name}: the options come from another version of distbench: {wrong}")
        return cls(case, strategy, effective)

    @property
    def ddp(self) -> DistributedDataParallel | None:
        """The strategy, if it is DDP."""
        return self.strategy if isinstance(self.strategy, DistributedDataParallel) else None

    @property
    def fsdp(self) -> FullyShardedDataParallel | None:
        """The strategy, if it is FSDP."""
        return self.strategy if isinstance(self.strategy, FullyShardedDataParallel) else None

    @property
    def zero(self) -> Zero | None:
        """The strategy, if it is DeepSpeed's."""
        return self.strategy if isinstance(self.strategy, Zero) else None

    @property
    def tensor_parallelism(self) -> TensorParallelism | None:
        """Splits of layers across ranks by torch (tensor parallelism); None if layers are not split."""
        if isinstance(self.strategy, TensorParallel):
            return self.strategy.tensor_parallelism(self.case.world_size)
        inside = self.fsdp or self.pipeline
        return inside.tensor_parallelism if inside and inside.tensor_parallelism.ranks > 1 else None

    @property
    def is_split_by_plan(self) -> bool:
        """True if transformers splits the model of the case in the same way, by the model's own plan."""
        split = self.strategy
        if not isinstance(split, TensorParallel) or self.case.workload.name != "huggingface":
            return False
        return not (split.sequence_parallel or split.loss_parallel)

    @property
    def mesh(self) -> dict[str, int]:
        """Dimensions of the device mesh with several ranks, outermost first."""
        sizes = self.strategy.mesh_sizes(self.case.world_size)
        return {name: size for name, size in sizes.items() if size > 1}

    @property
    def pipeline(self) -> PipelineParallel | None:
        """The strategy, if it is a pipeline."""
        return self.strategy if isinstance(self.strategy, PipelineParallel) else None

    @property
    def context_parallelism(self) -> ContextParallel | None:
        """The strategy, if it splits sequences."""
        return self.strategy if isinstance(self.strategy, ContextParallel) else None

    @property
    def uses_autotp(self) -> bool:
        """True if DeepSpeed splits layers across ranks (AutoTP)."""
        return self.zero is not None and self.zero.tensor_parallelism.ranks > 1

    @property
    def data_ranks(self) -> int:
        """Number of data-parallel ranks."""
        return self.strategy.data_parallel_size(self.case.world_size)

    @property
    def is_mixed(self) -> bool:
        """True if the case computes in a different dtype than that of its master weights."""
        return self.case.precision.compute != self.case.precision.master

    @property
    def layer_classes(self) -> list[str]:
        """Classes of the layers that were wrapped individually; empty if the record doesn't have them."""
        given = self.case.workload.options.get("layer_classes")
        names = given if isinstance(given, list) else self.strategy.wrapped_layer_classes(self.effective)
        return [str(name) for name in names]

    def resolved_size(self, key: str) -> int | None:
        """Option of the strategy; if the suite left it unset, the number that the live engine reported."""
        option = getattr(self.strategy, key)
        reported = self.effective.get(key) if option is None else option
        return reported if type(reported) is int else None


@dataclass(frozen=True)
class ExportedFiles:
    """A case as configuration for another tool."""

    files: dict[str, str]
    """File name -> content, the main file first."""
    launch: str
    """Command that starts the user's own ``train.py`` with it."""
    notes: tuple[str, ...] = ()
    """Notes on further steps: settings that belong in the user's script."""
    differences: tuple[str, ...] = ()
    """Settings that this format can't express, so training differs from the measured case."""


def optimizer(spec: OptimizerConfig) -> tuple[str, dict[str, Any], dict[str, bool]]:
    """Import path of the optimizer's class, its hyperparameters, and the arguments that choose its kernel."""
    kind = optimizers.entry_of(spec)
    return kind.import_path, kind.hyper_parameters(spec), kind.kernel_flags(spec)


def optimizer_description(spec: OptimizerConfig) -> str:
    """Class of the optimizer that *spec* names, and that of its second optimizer."""
    first, second = optimizers.entry_of(spec).import_path, second_optimizer(spec)
    if not second:
        return first
    rest = optimizers.entry_of(second).import_path
    return f"two optimizers ({first} for the matrices of the layers, {rest} for the rest)"


def second_optimizer(spec: OptimizerConfig) -> OptimizerConfig | None:
    """Optimizer of all parameters but the layers' matrices, if there is a separate one."""
    rest = optimizers.entry_of(spec).companion
    return dataclasses.replace(spec, name=rest) if rest else None


def problems(measured: ExportedCase) -> Iterator[str]:
    """Yield reasons why no format can express this case."""
    spec, zero, context = measured.case.optimizer, measured.zero, measured.context_parallelism
    kind = optimizers.entry_of(spec)
    if zero and (kind.companion or kind.package != "torch"):
        yield (
            f"optimizer.name = {spec.name} is {optimizer_description(spec)}, which DeepSpeed's file can't "
            "name; pass it to deepspeed.initialize yourself"
        )
    if "loss_mean" in measured.effective:
        yield "its loss is a sum and a count, and no format can divide by the count of the global batch yet"
    if merged := measured.effective.get("merged_units"):
        yield (
            "layers of the measured model that share a parameter are sharded with the rest of it "
            f"({', '.join(merged[:3])}), which no format can express yet"
        )
    if zero and zero.pipeline:
        yield "no format supports DeepSpeed's PipelineModule yet"
    if zero and zero.mics_shard_size > 1:
        yield (
            "MiCS needs DeepSpeed up to 0.19.6 and a model built under deepspeed.zero.MiCS_Init, which no "
            "format can express; fsdp: {sharding: hybrid} also shards inside groups"
        )
    if context and context.implementation == "ulysses":
        yield "no format can express Ulysses; torchtitan's context parallelism is a ring"
    if context and not context.sharded:
        yield "torchtitan, the only format with a ring, also shards the model, as cp: {sharded: true} does"


def loss_scale_problems(measured: ExportedCase, tool: str) -> Iterator[str]:
    """Yield the reason why *tool* can't scale losses like the case, if the case scaled them."""
    precision = measured.case.precision
    if precision.compute != "fp16" or measured.zero:
        return
    if precision.is_scaled_dynamically:
        own = f"window of {precision.loss_scale_window} steps from {precision.first_loss_scale:g} on"
        yield (
            f"{tool} has no options for the window and the initial value of a dynamic loss scale; the case "
            f"had a {own}"
        )
    else:
        yield f"{tool} scales fp16 losses dynamically, the case by a constant ({precision.loss_scale!r})"
