"""``torchtitan``: a TOML file with the keys of torchtitan 0.2.2, the last release that reads one."""

from __future__ import annotations

import json
from typing import Any

from distbench import optimizers, schedule
from distbench.adopt import _titan_mesh as titan_mesh
from distbench.adopt import base
from distbench.adopt.base import Adopted, Measured
from distbench.case import TORCH_NAMES, Optimizer, Precision

FILE = "torchtitan.toml"

_NOTES = (
    "Uses the keys of torchtitan 0.2.2 (torchtitan/config/job_config.py), whose parser has read files like "
    "this one; no training was started with them. torchtitan 0.3 does not read it: it is configured in "
    "Python, some keys are gone (disable_loss_parallel, context_parallel_rotate_method), and it divides "
    "gradients otherwise.",
    "Add your own [model], data and sequence length: torchtitan trains its own models, not the case's.",
    "torchtitan sums the loss over tokens and divides by their number in the global batch: equal to the case "
    "if every sample has the same number of tokens.",
    *base.TRAINING_NOTES,
)
_DTYPES = ("fp32", "fp32", "fp32"), ("bf16", "fp32", "fp32")
"""Of computing, reducing and the master weights."""
_EACH_MICRO_BATCH = "torchtitan reduces after every micro-batch, the case once per step"


def problems(measured: Measured) -> list[str]:
    """Why torchtitan can't express this case."""
    case, fsdp = measured.case, measured.fsdp
    dtypes = (case.precision.compute, case.precision.reduce, case.precision.master)
    mesh, cut = titan_mesh.sizes(measured), measured.cut
    sentences = {
        "torchtitan trains only on accelerators; the case was measured on CPUs": case.device == "cpu",
        "torchtitan supports only FSDP2": fsdp and fsdp.version != 2,
        f"torchtitan has FSDP2, DDP, tensor, pipeline and context parallelism, not {case.strategy.name}": (
            not (fsdp or measured.ddp or measured.cut or measured.pipeline or measured.context)
        ),
        "torchtitan's tensor parallelism always uses sequence parallelism": cut and not cut.sequence,
        "torchtitan supports DDP (replicas without sharding) only if the mesh has no other dimension": (
            mesh["dp_replicate"] > 1 and mesh["dp_shard"] == 1 and len(measured.mesh) > 1
        ),
        f"without sharding torchtitan's tensor and pipeline parallelism compute in fp32, not {dtypes[0]}": (
            measured.is_mixed and mesh["dp_shard"] * mesh["cp"] == 1 and (mesh["tp"] > 1 or mesh["pp"] > 1)
        ),
        f"torchtitan supports Adam and AdamW, not {case.optimizer.name}": (
            case.optimizer.name not in ("adamw", "adam")
        ),
        "torchtitan computes in fp32 or bf16, reduces in fp32 and keeps fp32 weights; the case has "
        "compute {}, reduce {}, master {}".format(*dtypes): dtypes not in _DTYPES,
        _EACH_MICRO_BATCH: fsdp and not fsdp.reduce_each_micro_batch,
        f"torchtitan compiles in torch's default mode, not in {case.compile}": (
            case.compile not in ("none", "default")
        ),
        "torchtitan has no inverse-square-root schedule of the learning rate": (
            case.optimizer.schedule == "inverse_sqrt"
        ),
    }
    return base.applying(sentences)


def write(measured: Measured) -> Adopted:
    """The case as torchtitan's file."""
    launch = base.torchrun(measured, "-m", "torchtitan.train", f"--job.config_file={FILE}")
    differs = tuple(_differs(measured))
    text = base.header(measured.case, launch, _NOTES, differs) + _toml(_config(measured))
    return Adopted({FILE: text}, launch, _NOTES, differs)


def _differs(measured: Measured) -> list[str]:
    half = "torchtitan's selective checkpointing keeps every second matrix product; the case kept all"
    sentences: dict[str, object] = {half: measured.case.activation_checkpointing == "selective"}
    sentences |= titan_mesh.differences(measured)
    if not (ddp := measured.ddp):
        return base.applying(sentences)
    sentences |= {
        "bf16 with DDP is torch.autocast in torchtitan; the case cast every parameter": measured.is_mixed,
        _EACH_MICRO_BATCH: measured.case.batch.gradient_accumulation_steps > 1,
        "torchtitan sets neither gradient_as_bucket_view nor static_graph of DDP": (
            ddp.gradient_as_bucket_view or ddp.static_graph
        ),
        "torchtitan does not set find_unused_parameters of DDP": ddp.find_unused_parameters,
    }
    buckets = f"torchtitan's DDP has buckets of 100 MiB, the case of {ddp.bucket_cap_mb:g} MiB"
    return [buckets, *base.applying(sentences)]


def _config(measured: Measured) -> dict[str, dict[str, Any]]:
    case, fsdp = measured.case, measured.fsdp
    spec, batch = case.optimizer, case.batch
    return {
        "optimizer": {
            "name": optimizers.kind_of(spec).name,
            "lr": spec.lr,
            "beta1": spec.betas[0],
            "beta2": spec.betas[1],
            "eps": titan_mesh.scaled(measured, spec.eps),
            "weight_decay": titan_mesh.decay(measured),
            "implementation": {"loop": "for-loop"}.get(spec.kernel, spec.kernel),
        },
        "lr_scheduler": _scheduler(spec),
        "training": {
            # by which its decay ends
            **({"steps": spec.total_steps} if spec.total_steps else {}),
            "local_batch_size": batch.micro_batch_size,
            "global_batch_size": batch.global_batch_size,
            # it always clips; infinity only measures
            "max_norm": titan_mesh.scaled(
                measured, float("inf") if spec.clip_grad_norm is None else spec.clip_grad_norm
            ),
            "dtype": TORCH_NAMES[case.precision.master],
            "mixed_precision_param": TORCH_NAMES[case.precision.compute],
            "mixed_precision_reduce": TORCH_NAMES[case.precision.reduce],
            "enable_cpu_offload": bool(fsdp and fsdp.cpu_offload),
        },
        "parallelism": titan_mesh.parallelism(measured),
        "activation_checkpoint": {
            "mode": case.activation_checkpointing,
            **({"selective_ac_option": "op"} if case.activation_checkpointing == "selective" else {}),
        },
        "compile": {"enable": case.compile != "none", "components": ["model"]},
        "debug": {"seed": case.seed},
        **_float8(case.precision),
    }


def _float8(precision: Precision) -> dict[str, dict[str, Any]]:
    """Sections of the converter to torchao's float8; none if the case has none."""
    if precision.float8 == "none":
        return {}
    return {
        "model": {"converters": ["quantize.linear.float8"]},
        # the head is in none of the case's layers
        "quantize.linear.float8": {"recipe_name": precision.float8, "filter_fqns": ["output"]},
    }


def _scheduler(spec: Optimizer) -> dict[str, Any]:
    """By torchtitan's formula: update k has (k + 1) / warmup_steps, and the decay ends at training.steps."""
    if spec.schedule not in schedule.ENDING or not spec.total_steps:
        # a decay that ends where it starts
        return {"warmup_steps": spec.warmup_steps, "min_lr_factor": 1.0}
    return {
        "warmup_steps": spec.warmup_steps,
        "decay_ratio": 1 - schedule.begin_of_decay(spec) / spec.total_steps,
        "decay_type": "cosine" if spec.schedule == "cosine" else "linear",
        "min_lr_factor": spec.final_lr_fraction,
    }


def _toml(config: dict[str, dict[str, Any]]) -> str:
    sections = []
    for name, values in config.items():
        # JSON's words for text, numbers and booleans are TOML's, but that for infinity is not
        rows = [f"{key} = {json.dumps(value)}\n".replace("Infinity", "inf") for key, value in values.items()]
        sections.append(f"\n[{name}]\n{''.join(rows)}")
    return "".join(sections)
