"""``torchtitan-toml``: a TOML file with the keys of torchtitan 0.2.2, the last release that reads one."""

from __future__ import annotations

import json
import math
from typing import Any

from distbench.adopt import _titan, base
from distbench.adopt import _titan_mesh as titan_mesh
from distbench.adopt.base import ExportedCase, ExportedFiles
from distbench.core.case import PrecisionConfig

FILE = "torchtitan.toml"

_NOTES = (
    "For torchtitan 0.2.2 (torchtitan/config/job_config.py), whose parser accepts files like this one; "
    "no training was run with them. torchtitan 0.3 can't read it: use --as torchtitan for that version.",
    "Add your own [model], data and sequence length: torchtitan trains its own models, not the case's.",
    _titan.SAME_TOKENS,
    *base.TRAINING_NOTES,
)


def problems(measured: ExportedCase) -> list[str]:
    """Reasons why torchtitan 0.2.2 can't express this case."""
    mesh, cut, compute = (
        titan_mesh.sizes(measured),
        measured.tensor_parallelism,
        measured.case.precision.compute,
    )
    sentences = _titan.problems(measured) | {
        "torchtitan 0.2.2's tensor parallelism always uses sequence parallelism": cut
        and not cut.sequence_parallel,
        "torchtitan 0.2.2 supports DDP (replicas without sharding) only if the mesh has no other dimension": (
            mesh["dp_replicate"] > 1 and mesh["dp_shard"] == 1 and len(measured.mesh) > 1
        ),
        f"without sharding torchtitan 0.2.2's tensor and pipeline parallelism use fp32, not {compute}": (
            measured.is_mixed and mesh["dp_shard"] * mesh["cp"] == 1 and (mesh["tp"] > 1 or mesh["pp"] > 1)
        ),
    }
    return base.applicable(sentences)


def write(measured: ExportedCase) -> ExportedFiles:
    """The case as torchtitan's file."""
    launch = base.torchrun(measured, "-m", "torchtitan.train", f"--job.config_file={FILE}")
    differs = tuple(_differs(measured))
    text = base.header(measured.case, launch, _NOTES, differs) + _toml(_config(measured))
    return ExportedFiles({FILE: text}, launch, _NOTES, differs)


def _differs(measured: ExportedCase) -> list[str]:
    sentences = _titan.differences(measured) | titan_mesh.differences(measured)
    if not (ddp := measured.ddp):
        return base.applicable(sentences)
    sentences |= {
        "bf16 with DDP is torch.autocast in torchtitan; the case cast every parameter": measured.is_mixed,
        _titan.EACH_MICRO_BATCH: measured.case.batch.gradient_accumulation_steps > 1,
        "torchtitan sets neither gradient_as_bucket_view nor static_graph of DDP": (
            ddp.gradient_as_bucket_view or ddp.static_graph
        ),
        "torchtitan does not set find_unused_parameters of DDP": ddp.find_unused_parameters,
    }
    buckets = f"torchtitan's DDP has buckets of 100 MiB, the case of {ddp.bucket_cap_mb:g} MiB"
    return [buckets, *base.applicable(sentences)]


def _config(measured: ExportedCase) -> dict[str, dict[str, Any]]:
    case, spec = measured.case, measured.case.optimizer
    max_norm = titan_mesh.scale_to_torchtitan(measured, _titan.clipping(spec))
    is_checkpointed = case.activation_checkpointing != "none"
    return {
        "optimizer": {
            "name": _titan.optimizer_name(spec),
            "lr": spec.lr,
            "beta1": spec.betas[0],
            "beta2": spec.betas[1],
            "eps": titan_mesh.scale_to_torchtitan(measured, spec.eps),
            "weight_decay": titan_mesh.weight_decay(measured),
            "implementation": _titan.implementation(spec),
        },
        "lr_scheduler": _titan.scheduler(spec),
        "training": _titan.training(measured, max_norm),
        "parallelism": _parallelism(measured),
        "activation_checkpoint": {
            "mode": case.activation_checkpointing,
            **({"selective_ac_option": "op"} if case.activation_checkpointing == "selective" else {}),
            # recomputation stops after the last required tensor
            **({"early_stop": True} if is_checkpointed else {}),
        },
        "compile": {"enable": case.compile != "none", "components": ["model"]},
        "debug": {"seed": case.seed},
        **_float8(case.precision),
    }


def _float8(precision: PrecisionConfig) -> dict[str, dict[str, Any]]:
    """Sections of torchao's float8 converter; none if the case has none."""
    if precision.float8 == "none":
        return {}
    return {
        "model": {"converters": ["quantize.linear.float8"]},
        # the head is not among the case's layers
        "quantize.linear.float8": {"recipe_name": precision.float8, "filter_fqns": ["output"]},
    }


def _parallelism(measured: ExportedCase) -> dict[str, Any]:
    over, pipeline = measured.tensor_parallelism, measured.pipeline
    # same as in torch's own ring, which the case ran
    ring = {"context_parallel_load_balancer": "headtail", "context_parallel_rotate_method": "allgather"}
    return {
        **titan_mesh.parallelism(measured, head="output"),
        **({"disable_loss_parallel": not over.loss_parallel} if over else {}),
        # meant for experts; it replaces the schedule's overlap of two micro-batches
        **(
            {"pipeline_parallel_expert_parallel_overlap": False}
            if pipeline and pipeline.schedule == "DualPipeV"
            else {}
        ),
        **(ring if measured.context_parallelism else {}),
    }


def _value(value: Any) -> str:
    """TOML text of *value*: like JSON, except for infinity and for characters that JSON may escape."""
    return "inf" if value == math.inf else json.dumps(value, ensure_ascii=False)


def _toml(config: dict[str, dict[str, Any]]) -> str:
    sections = []
    for name, values in config.items():
        rows = [f"{key} = {_value(value)}\n" for key, value in values.items()]
        sections.append(f"\n[{name}]\n{''.join(rows)}")
    return "".join(sections)
