"""Shared parts of the exporters."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distbench import optimizers
from distbench.core import lr_schedule, registry
from distbench.core.case import CURRENT_ENVIRONMENT, Batch, Case, OptimizerConfig
from distbench.core.errors import SuiteMistake, UsageError
from distbench.core.serialization import decode
from distbench.core.text import one_line
from distbench.core.units import format_count
from distbench.strategies._tensor_parallel import TensorParallelism
from distbench.strategies.base import Strategy
from distbench.strategies.cp import ContextParallel
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.dp import DataParallel
from distbench.strategies.fsdp import FullyShardedDataParallel
from distbench.strategies.pp import PipelineParallel
from distbench.strategies.single import Single
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

_WEIGHT_DECAY_NOTE = (
    "Weight decay applies to every parameter, including biases and norms, and the learning rate "
    "follows the schedule above; with another schedule or with exempt parameters the training is not "
    "equivalent to the measured case."
)
_PROCESS_COUNT_NOTE = (
    "With a different number of processes, change the micro-batch size or accumulation to keep the global "
    "batch size."
)
FIRST_NODE = "FIRST_NODE"
"""Placeholder for the name of a node in a command."""
TRAINING_NOTES = (_WEIGHT_DECAY_NOTE, _PROCESS_COUNT_NOTE)
"""Notes for a tool that has its own training loop."""
COMMON_NOTES = (f"train.py is your script. {_WEIGHT_DECAY_NOTE}", _PROCESS_COUNT_NOTE)
"""Notes for a script of the user's."""


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


def applicable(sentences: Mapping[str, object]) -> list[str]:
    """*sentences* whose conditions hold."""
    return [sentence for sentence, holds in sentences.items() if holds]


def header(case: Case, launch: str, notes: Iterable[str], differs: Iterable[str]) -> str:
    """Comment for the top of a file in Python, YAML or TOML."""
    lines = [
        f"{one_line(case.name)} ({case.id}), as measured by distbench.",
        "",
        *(f"{name}: {one_line(value, 600)}" for name, value in _settings(case).items()),
        "",
        f"Launch: {launch}",
        *(f"Note: {one_line(note, 600)}" for note in notes),
        *(f"Differs: {one_line(difference, 600)}" for difference in differs),
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def as_json(data: Mapping[str, Any]) -> str:
    """*data* as the text of a JSON file."""
    return json.dumps(data, indent=2) + "\n"


def command(measured: ExportedCase, *words: str) -> str:
    """Command line with the environment variables that the ranks of the case had."""
    variables = [f"OMP_NUM_THREADS={measured.case.threads}"]
    if measured.zero and measured.case.device == "cpu":
        # otherwise DeepSpeed picks the device by the modules that it can import
        variables.append("DS_ACCELERATOR=cpu")
    return " ".join([*variables, *words])


def torchrun(measured: ExportedCase, *words: str) -> str:
    """torchrun command for the ranks of the case, by default of ``train.py``."""
    meeting = ["--standalone"]
    if measured.nodes > 1:
        meeting = [f"--nnodes={measured.nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={FIRST_NODE}:29500"]
    processes = f"--nproc-per-node={ranks_per_node(measured)}"
    return command(measured, "torchrun", *meeting, processes, *(words or ("train.py",)))


def ranks_per_node(measured: ExportedCase) -> int:
    """Ranks on each node; on the first ones if they don't divide evenly."""
    return math.ceil(measured.case.world_size / measured.nodes)


def multi_node_note(measured: ExportedCase, launch: str) -> list[str]:
    """Notes on a *launch* on several nodes; empty for one node."""
    if measured.nodes == 1:
        return []
    if "--hostfile" in launch:
        how = "start the command on one of them; HOSTFILE is DeepSpeed's list of all."
    else:
        rank = ", and machine_rank set to its number from 0" if "accelerate launch" in launch else ""
        how = f"start the command on each of them, with the name of the first for {FIRST_NODE}{rank}."
    return [f"The case ran on {measured.nodes} nodes: {how}"]


def optimizer(spec: OptimizerConfig) -> tuple[str, dict[str, Any], dict[str, bool]]:
    """Import path of the optimizer's class, its hyperparameters, and the arguments that choose its kernel."""
    kind = optimizers.entry_of(spec)
    return kind.import_path, kind.hyper_parameters(spec), kind.kernel_flags(spec)


def optimizer_description(spec: OptimizerConfig) -> str:
    """Class of the optimizer that *spec* names, and that of its second optimizer."""
    kind = optimizers.entry_of(spec)
    if not kind.companion:
        return kind.import_path
    rest = optimizers.entry_of(second_optimizer(spec)).import_path
    return f"two optimizers ({kind.import_path} for the matrices of the layers, {rest} for the rest)"


def second_optimizer(spec: OptimizerConfig) -> OptimizerConfig:
    """Optimizer of all parameters but the layers' matrices, if there is a separate one."""
    rest = optimizers.entry_of(spec).companion
    return dataclasses.replace(spec, name=rest) if rest else spec


def problems(measured: ExportedCase) -> list[str]:
    """Reasons why no format can express this case."""
    spec = measured.case.optimizer
    kind = optimizers.entry_of(spec)
    foreign, context = kind.companion or kind.package != "torch", measured.context_parallelism
    sentences = {
        f"optimizer.name = {spec.name} is {optimizer_description(spec)}, which DeepSpeed's file can't name; "
        "pass it to "
        "deepspeed.initialize yourself": measured.zero and foreign,
        "its loss is a sum and a count, and no format can divide by the count of the global batch yet": (
            "loss_mean" in measured.effective
        ),
        "layers of the measured model that share a parameter are sharded with the rest of it "
        f"({', '.join(measured.effective.get('merged_units', [])[:3])}), which no format can express yet": (
            measured.effective.get("merged_units")
        ),
        "no format supports DeepSpeed's PipelineModule yet": (measured.zero and measured.zero.pipeline),
        "MiCS needs DeepSpeed up to 0.19.6 and a model built under deepspeed.zero.MiCS_Init, which no format "
        "can express; fsdp: {sharding: hybrid} also shards inside groups": (
            measured.zero and measured.zero.mics_shard_size > 1
        ),
        "no format can express Ulysses; torchtitan's context parallelism is a ring": (
            context and context.implementation == "ulysses"
        ),
        "torchtitan, the only format with a ring, also shards the model, as cp: {sharded: true} does": (
            context and not context.sharded
        ),
    }
    return applicable(sentences)


def fixed_loss_scale(measured: ExportedCase, tool: str) -> dict[str, bool]:
    """Note that *tool* can't scale losses like the case -> whether the case scaled them."""
    precision = measured.case.precision
    if precision.is_scaled_dynamically:
        own = f"window of {precision.loss_scale_window} steps from {precision.first_loss_scale:g} on"
        problem = (
            f"{tool} has no options for the window and the initial value of a dynamic loss scale; the case "
            f"had a {own}"
        )
    else:
        problem = f"{tool} scales fp16 losses dynamically, the case by a constant ({precision.loss_scale!r})"
    return {problem: precision.compute == "fp16" and not measured.zero}


def matrix_optimizer_note(measured: ExportedCase) -> list[str]:
    """A note on the parameters of a case with two optimizers."""
    spec = measured.case.optimizer
    note = f"The optimizer is {optimizer_description(spec)}: pass all layers of the model as layers."
    return applicable({note: second_optimizer(spec) is not spec})


def unnamed_layers(measured: ExportedCase, advice: str) -> list[str]:
    """A note with *advice* for a sharded case whose layers have no known class."""
    note = f"The class of the layers is not in the record: {advice}, unless the model is from transformers, "
    return applicable({note + "which names them itself.": measured.fsdp and not measured.layer_classes})


def _ranks(batch: Batch) -> str:
    return format_count(batch.total_micro_batches // batch.gradient_accumulation_steps, "data-parallel rank")


def _settings(case: Case) -> dict[str, str]:
    """Every hyperparameter of *case* in words, for reference next to what the format expresses."""
    batch, precision, clip = case.batch, case.precision, case.optimizer.clip_grad_norm
    matmul = precision.matmul
    options = {k: v for k, v in case.strategy.options.items() if v not in (None, "")}
    texts = [f"{k} = {v if isinstance(v, str) else json.dumps(v)}" for k, v in options.items()]
    return {
        "strategy": ", ".join([case.strategy.name, *texts]),
        "processes": f"{case.world_size} on {case.device}, {case.threads} intra-op threads each",
        "batch": f"{batch.global_batch_size} samples per step = {batch.micro_batch_size} per micro-batch x "
        f"{batch.gradient_accumulation_steps} accumulation steps x {_ranks(batch)}",
        "optimizer": _optimizer_text(case.optimizer),
        "clipping": "none" if clip is None else f"global L2 norm of the gradients to {clip!r}",
        "precision": f"compute {precision.compute}, reduce {precision.reduce}, master weights "
        f"{precision.master}, optimizer state {precision.optimizer_state}, loss scale "
        f"{'none' if precision.loss_scale is None else repr(precision.loss_scale)}"
        + (f', torch.set_float32_matmul_precision("{matmul}")' if matmul != "highest" else "")
        + (f", linear layers in float8 ({precision.float8})" if precision.float8 != "none" else ""),
        "activation checkpointing": case.activation_checkpointing,
        "torch.compile": "no" if case.compile == "none" else f"each layer, in mode {case.compile}",
        "seed": str(case.seed),
        **({} if case.environment == CURRENT_ENVIRONMENT else {"Python environment": environment_note(case)}),
    }


def environment_note(case: Case) -> str:
    """Note that *case* was measured in a different Python environment than the command's own."""
    return f"{case.environment}, as its suite calls it; the report has what was installed there (software)"


def _optimizer_text(spec: OptimizerConfig) -> str:
    kind = optimizers.entry_of(spec)
    own = {key: value for key, value in kind.hyper_parameters(spec).items() if key != "weight_decay"}
    values = [f"{key} {list(each) if isinstance(each, tuple) else each!r}" for key, each in own.items()]
    decay = f"weight decay {spec.weight_decay!r} on all parameters"
    whose = "torch's" if kind.package == "torch" else f"{kind.package}'s"
    words = [
        kind.class_name,
        *values,
        decay,
        f"schedule {lr_schedule.schedule_text(spec)}",
        f"{whose} {spec.kernel} kernel",
    ]
    of_rest = (
        [f"for all but the matrices of the layers: {_optimizer_text(second_optimizer(spec))}"]
        if kind.companion
        else []
    )
    return "; ".join([", ".join(words), *of_rest])
