"""``torch``: functions for a training script in plain torch, with DDP, FSDP2, FSDP1 or DeepSpeed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from distbench.adopt import deepspeed_config
from distbench.adopt.exported_case import FSDP1_STRATEGIES, ExportedCase, ExportedFiles
from distbench.adopt.instructions import COMMON_NOTES, command, header, matrix_optimizer_note, torchrun
from distbench.adopt.pipeline_stages import ScriptStages
from distbench.adopt.script_templates import python_literal, render, script_context
from distbench.core import registry
from distbench.core.case import Case
from distbench.core.meshes import DATA_DIMENSIONS
from distbench.strategies.dp import DataParallel
from distbench.strategies.single import Single
from distbench.workloads.base import Workload
from distbench.workloads.splits import TensorSplits

FILE = "adopted_torch.py"
TRAINING_SCRIPT = "train.py"
"""File of the training script around the functions."""

_USE = (
    f"In train.py, with {FILE} next to it or pasted in: device = setup(); build the model; "
    "model, optimizer = prepare(model, layers, device), where layers are the modules to shard and "
    "checkpoint individually (such as list(model.layers)); then train(model, optimizer, batches, loss_of) "
    "yields one loss per update, where batches are this rank's micro-batches on its device and "
    "loss_of(model, batch) returns the mean loss of a micro-batch in fp32.",
)
_PIPELINE_USE = (
    f"In train.py, with {FILE} next to it or pasted in: device = setup(); build the model; "
    "model, optimizer = prepare(model, layers, device, stage_of, loss_of); "
    "train(model, optimizer, batches) yields one loss per update. layers are those of the whole model, in "
    "order; loss_of(output, labels) returns a mean loss in fp32; batches are pairs of model input and "
    "labels, on the device, {rows}.",
    "stage_of(model, numbers) returns the module of one stage: the layers of model with these numbers, plus "
    "all before them in the first stage and all after them in the last; its input is the output of the "
    "previous stage.",
    "STAGES has the layer numbers of the measured model, TAKEN, PASSED and GIVEN the shapes of its tensors: "
    "replace them with yours.",
)
_TIED = "TIED names the tied parameters of the measured model: replace them with yours."
_PLAN = "The plan in split() names the modules of the measured model: replace them with yours."


def problems(measured: ExportedCase) -> Iterator[str]:
    """Yield reasons why a script can't express this case."""
    precision, pipeline = measured.case.precision, measured.pipeline
    if precision.is_scaled_dynamically and not measured.zero:
        yield "the script supports only a constant loss scale, not a dynamic one"
    if measured.case.workload.name == "huggingface" and (measured.tensor_parallelism or pipeline):
        yield "the script can't split a model of transformers by the plans of its configuration"
    if pipeline and precision.loss_scale:
        yield "the script's pipeline does not support a loss scale"


def write(measured: ExportedCase) -> ExportedFiles:
    """The case as a module to paste, with DeepSpeed's configuration if DeepSpeed is the engine."""
    stages = ScriptStages.of(measured, measured.pipeline) if measured.pipeline else None
    notes = (
        *measured.size_notes,
        *(_pipeline_notes(measured, stages) if stages else _USE),
        *COMMON_NOTES,
        *matrix_optimizer_note(measured),
        *deepspeed_config.notes(measured),
        *_split_note(measured),
    )
    differs = tuple(deepspeed_config.differs(measured, with_schedule=True))
    launch = command(measured, "python", "train.py") if _is_one_process(measured) else torchrun(measured)
    script = render("torch.py.j2", _context(measured, stages))
    text = header(measured.case, launch, notes, differs) + "\n" + script
    return ExportedFiles({FILE: text, **deepspeed_config.files(measured)}, launch, notes, differs)


def training_script(case: Case) -> str:
    """``train.py`` for *case*: trains a small model on synthetic data, on as many ranks as the case had."""
    return render("train.py.j2", {"module": FILE.removesuffix(".py"), "batch": case.batch})


def _is_one_process(measured: ExportedCase) -> bool:
    return measured.strategy.processes(2) == 1 or isinstance(measured.strategy, Single)


def _pipeline_notes(measured: ExportedCase, stages: ScriptStages) -> list[str]:
    """Instructions for the script, and its parts that depend on the measured model."""
    several, split = measured.data_ranks, measured.mesh.get("tp", 1)
    rows = "the same on all ranks"
    if several > 1:
        rank = f"rank // {split}" if split > 1 else "rank"
        rows += f" of a pipeline: {rank} % {several} selects one of the {several} parts of the batch"
    notes = [note.format(rows=rows) for note in _PIPELINE_USE]
    return [*notes, _TIED] if stages.tied_copies else notes


def _split_note(measured: ExportedCase) -> list[str]:
    """Notes on the plan, and outside pipelines on the samples of a rank; none if no layer is split."""
    if not (split := measured.tensor_parallelism):
        return []
    rows = (
        f"Groups of {split.ranks} neighbouring ranks process the same samples: rank // {split.ranks} selects "
        "a rank's micro-batches."
    )
    return [_PLAN if measured.pipeline else f"{_PLAN} {rows}"]


def _context(measured: ExportedCase, stages: ScriptStages | None) -> dict[str, Any]:
    """Values for the templates of the script."""
    fsdp, mesh = measured.fsdp, _device_mesh(measured)
    only_replicates = "dp_replicate" in measured.mesh and "dp_shard" not in measured.mesh
    engine_casts = fsdp or measured.zero or (measured.pipeline and "dp_shard" in measured.mesh)
    return script_context(measured) | {
        "is_one_process": _is_one_process(measured),
        "is_data_parallel": isinstance(measured.strategy, DataParallel),
        "casts": measured.is_mixed and not engine_casts,
        "mesh": mesh,
        "mesh_sizes": measured.mesh,
        "data_mesh": _data_mesh(measured) if measured.tensor_parallelism or measured.pipeline else mesh,
        "data_ranks": measured.data_ranks,
        "tp": measured.tensor_parallelism,
        "splits": _splits(measured),
        "fsdp1_strategy": FSDP1_STRATEGIES[fsdp.sharding] if fsdp else "",
        "deepspeed_file": deepspeed_config.FILE,
        "pipeline": measured.pipeline,
        "stages": stages,
        # DDP must not reduce before the last batch of an update
        "reduces_late": only_replicates and measured.case.batch.gradient_accumulation_steps > 1,
    }


def _splits(measured: ExportedCase) -> TensorSplits | None:
    """Tensor splits of the measured model; None: no layer is split."""
    if not measured.tensor_parallelism:
        return None
    workload: Workload = registry.create_plugin("workloads", measured.case.workload)
    return workload.tensor_splits()


def _device_mesh(measured: ExportedCase) -> str:
    """Expression that creates the device mesh of the case."""
    sizes = measured.strategy.mesh_sizes(measured.case.world_size)
    names = python_literal(tuple(sizes))
    return f'init_device_mesh("{measured.case.device}", {tuple(sizes.values())}, mesh_dim_names={names})'


def _data_mesh(measured: ExportedCase) -> str:
    """Dimensions of ``mesh`` whose ranks have their own rows."""
    sizes = measured.strategy.mesh_sizes(measured.case.world_size)
    return f"mesh[{', '.join(json.dumps(name) for name in sizes if name in DATA_DIMENSIONS)}]"
