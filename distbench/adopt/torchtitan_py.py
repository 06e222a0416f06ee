"""``torchtitan``: a function with the configuration of torchtitan 0.3, which is written in Python.

Read in torchtitan/trainer.py, torchtitan/config, torchtitan/components and torchtitan/distributed of v0.3.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from distbench.adopt import torchtitan_settings as shared
from distbench.adopt.exported_case import ExportedCase, ExportedFiles
from distbench.adopt.instructions import TRAINING_NOTES, header, torchrun
from distbench.adopt.script_templates import render

FILE = "torchtitan_config.py"

_NOTES = (
    "For torchtitan 0.3, whose parser accepts files like this one; no training was run with them. Use "
    "--as torchtitan-toml for 0.2.2.",
    "Replace the import of base by your own configuration: torchtitan trains its own models, not the case's. "
    "It has the model, the data and the sequence length.",
    shared.SAME_TOKENS,
    *TRAINING_NOTES,
)
_POLICIES = {"none": "None", "full": "FullAC.Config()", "selective": "SelectiveAC.Config()"}
_FLOAT8 = (
    "float8 is a part of the model in torchtitan 0.3: pass converters=[Float8LinearConverter.Config("
    "recipe_name={recipe!r}, filter_fqns=['lm_head'], model_compile_enabled={compiled})] to model_registry"
)


def problems(measured: ExportedCase) -> Iterator[str]:
    """Yield reasons why torchtitan 0.3 can't express this case."""
    yield from shared.problems(measured)
    if measured.context_parallelism:
        yield "torchtitan 0.3 has no ring attention: its context parallelism gathers keys and values"
    recipe = measured.case.precision.float8
    if recipe not in ("none", "rowwise", "rowwise_with_gw_hp"):
        yield f"torchtitan 0.3 has the float8 recipes rowwise and rowwise_with_gw_hp, not {recipe}"


def write(measured: ExportedCase) -> ExportedFiles:
    """The case as a module for torchtitan's ``--module`` and ``--config``."""
    launch = torchrun(
        measured, "-m", "torchtitan.train", f"--module={FILE.removesuffix('.py')}", "--config=measured"
    )
    differs = tuple(_differences(measured))
    text = header(measured.case, launch, _NOTES, differs) + "\n" + _text(measured)
    return ExportedFiles({FILE: text}, launch, _NOTES, differs)


def _differences(measured: ExportedCase) -> Iterator[str]:
    case, mesh, tp = measured.case, shared.mesh_sizes(measured), measured.tensor_parallelism
    yield from shared.differences(measured)
    if case.activation_checkpointing != "none":
        yield "torchtitan recomputes whole blocks; the case stopped at the last tensor that is needed"
    replicates = mesh["dp_replicate"] > 1 and mesh["dp_shard"] == 1
    if measured.ddp or replicates:
        yield "torchtitan 0.3 has no DDP: it replicates with FSDP2 over shards of one rank"
    if replicates and case.batch.gradient_accumulation_steps > 1:
        yield shared.EACH_MICRO_BATCH
    if tp and not tp.loss_parallel:
        yield "torchtitan 0.3 computes the loss from logits that are split by class; the case gathered them"
    if "module_fqns_per_model_part" in _parallelism(measured):
        yield shared.NAMED_STAGES
    if case.precision.float8 != "none":
        yield _FLOAT8.format(recipe=case.precision.float8, compiled=case.compile != "none")


def _text(measured: ExportedCase) -> str:
    case, spec = measured.case, measured.case.optimizer
    context = {
        "policy": _POLICIES[case.activation_checkpointing],
        "optimizer_name": shared.optimizer_name(spec),
        "arguments": {key: getattr(spec, key) for key in ("lr", "betas", "eps", "weight_decay")},
        "implementation": shared.implementation(spec),
        "scheduler": shared.scheduler(spec),
        # without CUDA graphs, like the case
        "training": shared.training(measured, shared.clipping(spec)) | {"disable_cuda_graphs": True},
        "parallelism": _parallelism(measured),
        "compiles": case.compile != "none",
        "seed": case.seed,
    }
    return render("torchtitan.py.j2", context)


def _parallelism(measured: ExportedCase) -> dict[str, Any]:
    cut = measured.tensor_parallelism
    sequence = {"enable_sequence_parallel": cut.sequence_parallel} if cut else {}
    return {**shared.parallelism(measured, head="lm_head"), **sequence}
