"""Where DeepSpeed's engine keeps what it keeps, by stage."""

from __future__ import annotations

from typing import Any

import torch

from distbench.strategies.torch_engine.reading import Ledger

# names of the ZeRO optimizers' own members; a stage that has no such member keeps nothing there
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


def book(ledger: Ledger, engine: Any, masters: list[torch.Tensor]) -> None:
    """Book all that DeepSpeed's *engine* keeps; a gradient that lies in a bucket is the bucket's."""
    optimizer, parameters = engine.optimizer, list(engine.module.parameters())
    # in stage 3 a parameter is its partition, and its data stand only while it is gathered
    ledger.book("parameters", [getattr(p, "ds_tensor", p) for p in parameters])
    ledger.book("parameters", [getattr(p, "ds_secondary_tensor", None) for p in parameters])
    ledger.book("parameters", _members(optimizer, _PARAMETERS))
    ledger.book("master", masters)
    ledger.book("optimizer_state", engine.basic_optimizer.state)
    buckets = getattr(optimizer, "ipg_buckets", {})
    ledger.book("buffers", [bucket.buffer for bucket in buckets.values()], _members(optimizer, _BUFFERS))
    ledger.book("buffers", parameters)
    # into these a pipeline receives
    ledger.book("buffers", _members(engine, ("pipe_recv_buf", "_grad_layer_buf", "meta_buffer")))
    ledger.book("gradients", [p.grad for p in (*parameters, *masters)], _members(optimizer, _GRADIENTS))
    ledger.book("gradients", [getattr(p, "grad_accum", None) for p in parameters])


def _members(holder: Any, names: tuple[str, ...]) -> list[Any]:
    return [getattr(holder, name, None) for name in names]
