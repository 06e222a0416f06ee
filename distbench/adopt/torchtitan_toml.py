"""``torchtitan``: a TOML file with the keys of torchtitan 0.2.2, the last release that reads one."""

from __future__ import annotations

from typing import Any

from distbench.adopt.base import COMMON_NOTES, Adopted, Measured, command, commented, header, literal, mixed
from distbench.case import TORCH_NAMES
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.fsdp import FullyShardedDataParallel

STRATEGIES = (DistributedDataParallel, FullyShardedDataParallel)
FILE = "torchtitan.toml"

_NOTES = (
    "Uses the keys of torchtitan 0.2.2 (torchtitan/config/job_config.py). distbench's tests do not run "
    "torchtitan's parser, so this file has never been loaded by torchtitan. From 0.3 on, torchtitan is "
    "configured in Python with the same names.",
    "Add your own [model], data and sequence length: torchtitan trains its own models, not the case's.",
    "torchtitan sums the loss over tokens and divides by their number in the global batch: equal to the case "
    "if every sample has the same number of tokens.",
)


def problem(measured: Measured) -> str | None:
    """Why torchtitan can't express this case, or None."""
    case, strategy = measured.case, measured.strategy
    if case.device == "cpu":
        return "torchtitan trains only on accelerators; the case was measured on CPUs"
    return _strategy_problem(measured) or _number_problem(measured) or _sharding_problem(strategy)


def write(measured: Measured) -> Adopted:
    """The case as torchtitan's file."""
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
        return None if strategy.version == 2 else "torchtitan supports only FSDP2"
    if not isinstance(strategy, DistributedDataParallel):
        return f"torchtitan supports FSDP2 and DDP, not {case.strategy.name}"
    return None


def _number_problem(measured: Measured) -> str | None:
    case = measured.case
    precision = case.precision
    if case.optimizer.name != "adamw":
        return "torchtitan supports Adam and AdamW, not SGD"
    if precision.master != "fp32" or precision.compute not in ("fp32", "bf16") or precision.reduce != "fp32":
        return (
            "torchtitan computes in fp32 or bf16, reduces in fp32 and keeps fp32 weights; the case has "
            f"compute {precision.compute}, reduce {precision.reduce}, master {precision.master}"
        )
    return None


def _sharding_problem(strategy: object) -> str | None:
    if isinstance(strategy, FullyShardedDataParallel) and not strategy.reduce_each_micro_batch:
        return "torchtitan reduces after every micro-batch, the case once per step"
    return None


def _differs(measured: Measured) -> list[str]:
    case, strategy = measured.case, measured.strategy
    differences = []
    if isinstance(strategy, DistributedDataParallel):
        buckets = f"torchtitan's DDP has buckets of 100 MiB, the case of {strategy.bucket_cap_mb:g} MiB"
        differences.append(buckets)
        if mixed(case):
            differences.append("bf16 with DDP is torch.autocast in torchtitan; the case cast every parameter")
        if case.batch.gradient_accumulation_steps > 1:
            differences.append("torchtitan reduces after every micro-batch, the case once per step")
        if strategy.gradient_as_bucket_view or strategy.static_graph:
            differences.append("torchtitan sets neither gradient_as_bucket_view nor static_graph of DDP")
    else:
        differences.append("torchtitan shards embedding, final norm and output head as separate units")
    return differences


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
        # constant: no warm-up, and a decay that ends where it starts
        "lr_scheduler": {"warmup_steps": 0, "min_lr_factor": 1.0},
        "training": {
            "local_batch_size": batch.micro_batch_size,
            "global_batch_size": batch.global_batch_size,
            # it always clips; infinity only measures
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
