"""``torchtitan``: its TOML file, by the keys of torchtitan 0.2.2, the last release that reads one."""

from __future__ import annotations

from typing import Any

from distbench.adopt.base import COMMON_NOTES, Adopted, Measured, command, commented, header, literal, mixed
from distbench.case import TORCH_NAMES
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.fsdp import FullyShardedDataParallel

FILE = "torchtitan.toml"

_NOTES = (
    "Written by the keys of torchtitan 0.2.2 (torchtitan/config/job_config.py); its parser is not part of "
    "distbench's tests, so this file has not been loaded by torchtitan. From 0.3 on torchtitan is configured "
    "in Python, with the same names.",
    "[model] names the model of the case nowhere: torchtitan trains its own models, put in yours; the same "
    "for the data and its sequence length.",
    "torchtitan sums the loss over tokens and divides by their number in the global batch: the same as the "
    "case where every sample has as many tokens.",
)


def problem(measured: Measured) -> str | None:
    """Return why torchtitan can't say this case, or None."""
    case, strategy = measured.case, measured.strategy
    if case.device == "cpu":
        return "torchtitan trains on accelerators only, the case was measured on CPUs"
    return _strategy_problem(measured) or _number_problem(measured) or _sharding_problem(strategy)


def write(measured: Measured) -> Adopted:
    """Return the case as torchtitan's file."""
    case = measured.case
    words = ("torchrun", "--standalone", f"--nproc-per-node={case.world_size}", "-m", "torchtitan.train")
    launch = command(case, *words, f"--job.config_file={FILE}")
    notes = (*_NOTES, *COMMON_NOTES)
    differs = tuple(_differs(measured))
    text = commented(header(case, launch, notes, differs)) + _toml(_config(measured))
    return Adopted({FILE: text}, launch, notes, differs)


def _strategy_problem(measured: Measured) -> str | None:
    strategy, case = measured.strategy, measured.case
    if isinstance(strategy, FullyShardedDataParallel):
        return None if strategy.version == 2 else "torchtitan has FSDP2 only"
    if not isinstance(strategy, DistributedDataParallel):
        return f"torchtitan has FSDP2 and DDP, no {case.strategy.name}"
    return None


def _number_problem(measured: Measured) -> str | None:
    case = measured.case
    precision = case.precision
    if case.optimizer.name != "adamw":
        return "torchtitan has Adam and AdamW, no SGD"
    if precision.master != "fp32" or precision.compute not in ("fp32", "bf16") or precision.reduce != "fp32":
        return (
            "torchtitan computes in fp32 or bf16 and reduces in fp32 over fp32 weights: precision is "
            f"{precision.compute}, {precision.reduce}, {precision.master}"
        )
    return None


def _sharding_problem(strategy: object) -> str | None:
    if isinstance(strategy, FullyShardedDataParallel) and not strategy.reduce_each_micro_batch:
        return "torchtitan reduces after every micro-batch, the case once a step"
    return None


def _differs(measured: Measured) -> list[str]:
    case, strategy = measured.case, measured.strategy
    found = []
    if isinstance(strategy, DistributedDataParallel):
        found.append(f"torchtitan's DDP has buckets of 100 MiB, the case had {strategy.bucket_cap_mb:g}")
        if mixed(case):
            found.append("bf16 under DDP is torch.autocast; the case cast every parameter")
        if case.batch.gradient_accumulation_steps > 1:
            found.append("torchtitan reduces after every micro-batch, DDP's case once a step")
        if strategy.gradient_as_bucket_view or strategy.static_graph:
            found.append("torchtitan sets neither gradient_as_bucket_view nor static_graph of DDP")
    else:
        found.append("torchtitan shards embedding, final norm and output head as units of their own")
    return found


def _config(measured: Measured) -> dict[str, dict[str, Any]]:
    case, strategy = measured.case, measured.strategy
    spec, batch = case.optimizer, case.batch
    replicas, shards, reshard = 1, case.world_size, "default"
    offload = False
    if isinstance(strategy, FullyShardedDataParallel):
        replicas = strategy.replicas if strategy.sharding == "hybrid" else 1
        shards = case.world_size // replicas
        offload = strategy.cpu_offload
        reshard = (
            "never" if strategy.sharding == "grad_op" else "always" if strategy.reshard_root else "default"
        )
    else:
        replicas, shards = case.world_size, 1
    return {
        "optimizer": {
            "name": "AdamW",
            "lr": spec.lr,
            "beta1": spec.betas[0],
            "beta2": spec.betas[1],
            "eps": spec.eps,
            "weight_decay": spec.weight_decay,
            "implementation": {"loop": "for-loop"}.get(spec.kernel, spec.kernel),
        },
        # constant: no warm-up, and a decay that ends where it begins
        "lr_scheduler": {"warmup_steps": 0, "min_lr_factor": 1.0},
        "training": {
            "local_batch_size": batch.micro_batch_size,
            "global_batch_size": batch.global_batch_size,
            # it always clips; at infinity it only measures
            "max_norm": float("inf") if spec.clip_grad_norm is None else spec.clip_grad_norm,
            "dtype": TORCH_NAMES[case.precision.master],
            "mixed_precision_param": TORCH_NAMES[case.precision.compute],
            "mixed_precision_reduce": TORCH_NAMES[case.precision.reduce],
            "enable_cpu_offload": offload,
        },
        "parallelism": {
            "data_parallel_replicate_degree": replicas,
            "data_parallel_shard_degree": shards,
            "fsdp_reshard_after_forward": reshard,
            "tensor_parallel_degree": 1,
            "pipeline_parallel_degree": 1,
            "context_parallel_degree": 1,
        },
        "activation_checkpoint": {"mode": case.activation_checkpointing},
        "compile": {"enable": False},
        "debug": {"seed": case.seed},
    }


def _toml(config: dict[str, dict[str, Any]]) -> str:
    sections = []
    for name, values in config.items():
        rows = "".join(f"{key} = {_value(value)}\n" for key, value in values.items())
        sections.append(f"\n[{name}]\n{rows}")
    return "".join(sections)


def _value(value: Any) -> str:
    return "inf" if value == float("inf") else literal(value)
