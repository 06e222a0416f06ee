"""``torchtitan``: a function with the configuration of torchtitan 0.3, which is written in Python.

Read in torchtitan/trainer.py, torchtitan/config, torchtitan/components and torchtitan/distributed of v0.3.0.
"""

from __future__ import annotations

from textwrap import indent
from typing import Any

from distbench.adopt import _titan, base
from distbench.adopt import _titan_mesh as titan_mesh
from distbench.adopt._python import lines
from distbench.adopt.base import ExportedCase, ExportedFiles

FILE = "torchtitan_config.py"

_NOTES = (
    "For torchtitan 0.3, whose parser accepts files like this one; no training was run with them. Use "
    "--as torchtitan-toml for 0.2.2.",
    "Replace the import of base by your own configuration: torchtitan trains its own models, not the case's. "
    "It has the model, the data and the sequence length.",
    _titan.SAME_TOKENS,
    *base.TRAINING_NOTES,
)
_POLICIES = {"none": "None", "full": "FullAC.Config()", "selective": "SelectiveAC.Config()"}
_FLOAT8 = (
    "float8 is a part of the model in torchtitan 0.3: pass converters=[Float8LinearConverter.Config("
    "recipe_name={recipe!r}, filter_fqns=['lm_head'], model_compile_enabled={compiled})] to model_registry"
)
_FILE = '''
import dataclasses

from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
{policy_import}from torchtitan.models.llama3.config_registry import llama3_debugmodel as base
from torchtitan.trainer import Trainer


def measured() -> Trainer.Config:
    """Return the base configuration, trained as the measured case."""
    config = base()
    config.optimizer = OptimizersContainer.Config(
        param_groups=[
            ParamGroupConfig(
                pattern=".*",
                optimizer_name={optimizer},
                optimizer_kwargs={arguments},
            )
        ],
        implementation={implementation},
    )
    config.lr_scheduler = LRSchedulersContainer.Config(
{scheduler}
    )
    config.training = dataclasses.replace(
        config.training,
{training}
    )
    config.parallelism = dataclasses.replace(
        config.parallelism,
{parallelism}
    )
    config.activation_checkpoint = {policy}
    config.compile = dataclasses.replace(config.compile, enable={compiles}, components=["model"])
    config.debug = dataclasses.replace(config.debug, seed={seed!r})
    return config
'''


def problems(measured: ExportedCase) -> list[str]:
    """Reasons why torchtitan 0.3 can't express this case."""
    case = measured.case
    gathers = "torchtitan 0.3 has no ring attention: its context parallelism gathers keys and values"
    recipe = (
        f"torchtitan 0.3 has the float8 recipes rowwise and rowwise_with_gw_hp, not {case.precision.float8}"
    )
    sentences = _titan.problems(measured) | {
        gathers: measured.context_parallelism,
        recipe: case.precision.float8 not in ("none", "rowwise", "rowwise_with_gw_hp"),
    }
    return base.applicable(sentences)


def write(measured: ExportedCase) -> ExportedFiles:
    """The case as a module for torchtitan's ``--module`` and ``--config``."""
    launch = base.torchrun(
        measured, "-m", "torchtitan.train", f"--module={FILE.removesuffix('.py')}", "--config=measured"
    )
    differs = tuple(base.applicable(_differences(measured)))
    text = base.header(measured.case, launch, _NOTES, differs) + _text(measured)
    return ExportedFiles({FILE: text}, launch, _NOTES, differs)


def _differences(measured: ExportedCase) -> dict[str, object]:
    case, mesh, ddp = measured.case, titan_mesh.sizes(measured), measured.ddp
    replicates = mesh["dp_replicate"] > 1 and mesh["dp_shard"] == 1
    several = case.batch.gradient_accumulation_steps > 1
    float8 = _FLOAT8.format(recipe=case.precision.float8, compiled=case.compile != "none")
    return {
        **_titan.differences(measured),
        **titan_mesh.units(measured),
        _titan.WHOLE_BLOCKS: case.activation_checkpointing != "none",
        "torchtitan 0.3 has no DDP: it replicates with FSDP2 over shards of one rank": ddp or replicates,
        _titan.EACH_MICRO_BATCH: replicates and several,
        "torchtitan 0.3 computes the loss from logits that are split by class; the case gathered them": (
            measured.tensor_parallelism and not measured.tensor_parallelism.loss_parallel
        ),
        titan_mesh.NAMED: "module_fqns_per_model_part" in _parallelism(measured),
        float8: case.precision.float8 != "none",
    }


def _text(measured: ExportedCase) -> str:
    case, spec = measured.case, measured.case.optimizer
    policy = _POLICIES[case.activation_checkpointing]
    classes = policy.partition(".")[0]
    imported = f"from torchtitan.distributed.activation_checkpoint import {classes}\n"
    arguments = {"lr": spec.lr, "betas": spec.betas, "eps": spec.eps, "weight_decay": spec.weight_decay}
    # without CUDA graphs, like the case
    training = _titan.training(measured, _titan.clipping(spec)) | {"disable_cuda_graphs": True}
    return _FILE.format(
        policy=policy,
        policy_import=imported if policy != "None" else "",
        optimizer=_literal(_titan.optimizer_name(spec)),
        arguments=_literal(arguments),
        implementation=_literal(_titan.implementation(spec)),
        scheduler=_keywords(_titan.scheduler(spec)),
        training=_keywords(training),
        parallelism=_keywords(_parallelism(measured)),
        compiles=case.compile != "none",
        seed=case.seed,
    )


def _parallelism(measured: ExportedCase) -> dict[str, Any]:
    cut = measured.tensor_parallelism
    sequence = {"enable_sequence_parallel": cut.sequence_parallel} if cut else {}
    return {**titan_mesh.parallelism(measured, head="lm_head"), **sequence}


def _keywords(values: dict[str, Any]) -> str:
    """Arguments of a call, one per line."""
    return indent(lines(*(f"{name}={_literal(value)}," for name, value in values.items())), " " * 8)


def _literal(value: Any) -> str:
    return 'float("inf")' if value == float("inf") else repr(value).replace("'", '"')
