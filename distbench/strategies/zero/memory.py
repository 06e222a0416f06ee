"""Count the storages of a DeepSpeed engine."""

from __future__ import annotations

from typing import Any

import torch

from distbench.strategies.torch_engine.readback import StorageCounter

# attributes of the ZeRO optimizers; a stage without such an attribute keeps nothing there
_PARAMETERS = ("bit16_groups_flat", "fp16_groups_flat", "bf16_groups_flat", "lp_param_buffer")
_BUFFERS = (
    "temp_grad_buffer_for_cpu_offload",
    "temp_grad_buffer_for_gpu_offload",
    "param_buffer_of_bit16_for_cpu_offload_groups",
)
_GRADIENTS = (
    "averaged_gradients",
    "all_grad_tensors",
    "accumulated_grads_in_cpu",
    "previous_reduced_grads",
    "grad_partitions_flat_buffer",
    "fp32_groups_gradients_flat",
)


def count_engine_storages(counter: StorageCounter, engine: Any, masters: list[torch.Tensor]) -> None:
    """Count all storages of DeepSpeed's *engine*; a gradient inside a bucket counts as the bucket's."""
    optimizer, parameters = engine.optimizer, list(engine.module.parameters())
    # in stage 3 a parameter is its partition, and its data exist only while it is gathered
    counter.count("parameters", [getattr(p, "ds_tensor", p) for p in parameters])
    counter.count("parameters", [getattr(p, "ds_secondary_tensor", None) for p in parameters])
    counter.count("parameters", _members(optimizer, _PARAMETERS))
    counter.count("master", masters)
    counter.count("optimizer_state", engine.basic_optimizer.state)
    buckets = getattr(optimizer, "ipg_buckets", {})
    counter.count("buffers", [bucket.buffer for bucket in buckets.values()], _members(optimizer, _BUFFERS))
    counter.count("buffers", parameters)
    # receive buffers of a pipeline
    counter.count("buffers", _members(engine, ("pipe_recv_buf", "_grad_layer_buf", "meta_buffer")))
    counter.count("gradients", [p.grad for p in (*parameters, *masters)], _members(optimizer, _GRADIENTS))
    counter.count("gradients", [getattr(p, "grad_accum", None) for p in parameters])


def _members(holder: Any, names: tuple[str, ...]) -> list[Any]:
    return [getattr(holder, name, None) for name in names]
