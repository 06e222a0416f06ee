"""A case of each kind that is written as configuration for other tools."""

from __future__ import annotations

import dataclasses
from typing import Any

from distbench.core.case import Batch, Case, OptimizerConfig, PluginChoice, PrecisionConfig
from support.records import case

BF16 = PrecisionConfig("bf16", "fp32", "fp32", "fp32")
FLOAT8 = dataclasses.replace(BF16, float8="rowwise")


def of(strategy: str, world_size: int = 2, device: str = "cuda", **changes: Any) -> Case:
    """Return a case of which no hyper-parameter is anybody's default."""
    options = changes.pop("options", {})
    given: dict[str, Any] = {
        "strategy": PluginChoice(strategy, options),
        "device": device,
        "batch": Batch(12 * world_size, 4, 3),
        "optimizer": OptimizerConfig("adamw", 0.00321, (0.71, 0.83), 3e-7, 0.0, 0.0453, 0.67, "foreach"),
        "activation_checkpointing": "full",
        "seed": 98765,
        **changes,
    }
    return case(strategy, world_size, **given)


ADAM = OptimizerConfig("adam", 0.00321, (0.71, 0.83), 3e-7, 0.0, 0.0453, 0.67, "foreach")
ADAFACTOR = dataclasses.replace(ADAM, name="adafactor")
MUON = OptimizerConfig("muon", 0.00321, (0.71, 0.83), 3e-7, 0.87, 0.0453, 0.67, "loop")


PLANNED = PluginChoice("huggingface", {"model_type": "llama", "seq_len": 32})
INSIDE, PAIRS = {"dp_shard": 2, "tp": 2}, {"mesh": {"cp": 2}}
ALL = {
    "single": of("single", 1),
    "ddp": of("ddp", options={"bucket_cap_mb": 7.0, "gradient_as_bucket_view": True}),
    "ddp-bf16": of("ddp", precision=BF16),
    "ddp-fp16": of("ddp", precision=PrecisionConfig("fp16", "fp16", "fp32", "fp32", 4096.0)),
    "ddp-compiled": of("ddp", activation_checkpointing="selective", compile="default"),
    "fsdp-compiled": of("fsdp", activation_checkpointing="selective", compile="max-autotune"),
    "ddp-float8": of("ddp", precision=FLOAT8),
    "fsdp-float8": of("fsdp", precision=FLOAT8, compile="default"),
    "zero2-float8": of("zero", options={"stage": 2}, precision=FLOAT8),
    "dp": of("dp"),
    "fsdp": of("fsdp", precision=BF16),
    "fsdp-fp16": of("fsdp", precision=PrecisionConfig("fp16", "fp32", "fp32", "fp32", 4096.0)),
    "fsdp-late": of("fsdp", options={"reduce_each_micro_batch": False, "reshard_root": True}),
    "fsdp-hybrid": of("fsdp", 4, options={"sharding": "hybrid", "cpu_offload": True}),
    "fsdp1": of("fsdp", options={"version": 1, "sharding": "grad_op"}),
    "fsdp1-fp16": of(
        "fsdp", precision=PrecisionConfig("fp16", "fp32", "fp32", "fp32", 64.0), options={"version": 1}
    ),
    "fsdp1-hybrid": of(
        "fsdp", 4, options={"version": 1, "sharding": "hybrid", "reduce_each_micro_batch": False}
    ),
    "zero0-bf16": of("zero", options={"stage": 0}, precision=BF16),
    "zero0-fp16": of(
        "zero", options={"stage": 0}, precision=PrecisionConfig("fp16", "fp32", "fp32", "fp32", 2048.0)
    ),
    "zero2": of("zero", options={"stage": 2, "offload_optimizer": "cpu", "optimizer_kernel": "deepspeed"}),
    "zero3": of("zero", options={"stage": 3, "offload_parameters": "nvme", "nvme_path": "/fast"}),
    "zero1-tp": of("zero", 4, batch=Batch(24, 4, 3), options={"stage": 1, "mesh": {"tp": 2}}),
    "tp": of("tp", batch=Batch(12, 4, 3), options={"sequence_parallel": True}),
    "tp-plan": of("tp", batch=Batch(12, 4, 3), workload=PLANNED),
    "pp": of("pp", batch=Batch(12, 4, 3)),
    "pp-bf16": of("pp", batch=Batch(12, 4, 3), precision=BF16, activation_checkpointing="selective"),
    "pp-ddp": of("pp", 4, batch=Batch(24, 4, 3), options={"mesh": {"dp_replicate": 2}}),
    "pp-fsdp": of("pp", 4, batch=Batch(24, 4, 3), options={"mesh": {"dp_shard": 2}}, precision=BF16),
    "pp-tp": of("pp", 4, batch=Batch(12, 4, 3), options={"mesh": {"tp": 2}, "loss_parallel": True}),
    "pp-fsdp-tp": of("pp", 8, batch=Batch(24, 4, 3), options={"mesh": INSIDE, "sequence_parallel": True}),
    "cp": of("cp", 4, batch=Batch(24, 4, 3), options={"implementation": "ring", "sharded": True} | PAIRS),
    "adam": of("fsdp", optimizer=ADAM),
    "zero0-adam": of("zero", options={"stage": 0}, optimizer=ADAM),
    "adafactor": of("ddp", optimizer=ADAFACTOR),
    "zero0-adafactor": of("zero", options={"stage": 0}, optimizer=ADAFACTOR),
    "lion": of("ddp", optimizer=dataclasses.replace(ADAM, name="lion")),
    "lamb": of("single", 1, optimizer=dataclasses.replace(ADAM, name="lamb")),
    "muon": of("ddp", optimizer=MUON),
    "fsdp-muon": of("fsdp", precision=BF16, optimizer=MUON),
    "adamw8bit": of("ddp", optimizer=dataclasses.replace(ADAM, name="adamw8bit", kernel="loop")),
    "sgd": of(
        "ddp", optimizer=OptimizerConfig("sgd", 0.00321, momentum=0.87, weight_decay=0.0453, kernel="loop")
    ),
}
