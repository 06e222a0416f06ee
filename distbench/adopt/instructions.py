"""Instructions beside exported settings: launch command, notes, and the comment at the top of a file."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator

from distbench import optimizers
from distbench.adopt.exported_case import ExportedCase, optimizer_description, second_optimizer
from distbench.core import lr_schedule
from distbench.core.case import CURRENT_ENVIRONMENT, NATIVE_ENGINE, Batch, Case, LoaderConfig, OptimizerConfig
from distbench.core.text import one_line
from distbench.core.units import format_count

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


def command(measured: ExportedCase, *words: str) -> str:
    """Command line with the environment variables that the ranks of the case had."""
    variables = [f"OMP_NUM_THREADS={measured.case.threads}"]
    variables += [f"{name}={shlex.quote(value)}" for name, value in measured.case.env.items()]
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


def matrix_optimizer_note(measured: ExportedCase) -> list[str]:
    """A note on the parameters of a case with two optimizers."""
    spec = measured.case.optimizer
    if not second_optimizer(spec):
        return []
    return [f"The optimizer is {optimizer_description(spec)}: pass all layers of the model as layers."]


def split_note(measured: ExportedCase) -> list[str]:
    """A note on the model and the rows of a case whose layers transformers splits."""
    if not measured.is_split_by_plan:
        return []
    return [
        "Build the model by model = split_model(FOLDER), where save_pretrained has left its weights; tried "
        "with transformers 5.23 and Accelerate 1.15. All ranks process the same samples, which Accelerate's "
        "loader gives them."
    ]


def unnamed_layers(measured: ExportedCase, advice: str) -> list[str]:
    """A note with *advice* for a sharded case whose layers have no known class."""
    if not measured.fsdp or measured.layer_classes:
        return []
    return [
        f"The class of the layers is not in the record: {advice}, unless the model is from transformers, "
        "which names them itself."
    ]


def unit_differences(measured: ExportedCase, tool: str) -> Iterator[str]:
    """Yield settings of FSDP's units that *tool* lacks."""
    fsdp = measured.fsdp
    if fsdp and fsdp.layers_per_unit > 1:
        yield f"{tool} shards each layer as a unit; units of the case have {fsdp.layers_per_unit} layers"
    if fsdp and (fsdp.forward_prefetch or fsdp.backward_prefetch):
        yield (
            f"{tool} prefetches as it decides itself; the case has forward_prefetch {fsdp.forward_prefetch}, "
            f"backward_prefetch {fsdp.backward_prefetch}"
        )


def environment_note(case: Case) -> str:
    """Note that *case* was measured in a different Python environment than the command's own."""
    return f"{case.environment}, as its suite calls it; the report has what was installed there (software)"


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
        **({} if case.loader.workers is None else {"loader": _loader_text(case.loader)}),
        "seed": str(case.seed),
        **({} if case.environment == CURRENT_ENVIRONMENT else {"Python environment": environment_note(case)}),
        **({"environment variables": variables} if (variables := _variables(case)) else {}),
        **({} if case.engine == NATIVE_ENGINE else {"framework": _framework_text(case)}),
    }


def _framework_text(case: Case) -> str:
    return f"{case.engine.name} took the measured steps; those of this file may be faster or slower"


def _loader_text(loader: LoaderConfig) -> str:
    text = f"torch's DataLoader with num_workers={loader.workers}, pin_memory={loader.pin_memory}"
    if not loader.workers:
        return text
    more = f"prefetch_factor={loader.prefetch_factor}, persistent_workers={loader.persistent_workers}"
    return f"{text}, {more}"


def _variables(case: Case) -> str:
    return ", ".join(f"{name}={value}" for name, value in case.env.items())


def _ranks(batch: Batch) -> str:
    return format_count(batch.total_micro_batches // batch.gradient_accumulation_steps, "data-parallel rank")


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
    text, second = ", ".join(words), second_optimizer(spec)
    return f"{text}; for all but the matrices of the layers: {_optimizer_text(second)}" if second else text
