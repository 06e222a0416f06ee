"""Settings and memory of a live DeepSpeed engine."""

from __future__ import annotations

from typing import Any

import torch

from distbench.strategies.torch_engine.readback import StorageCounter
from distbench.strategies.zero import live_state

_STAGE3_SETTINGS = (
    "param_persistence_threshold",
    "max_live_parameters",
    "max_reuse_distance",
    "prefetch_bucket_size",
)
_OPTIMIZER_SETTINGS = ("sub_group_size", "round_robin_gradients", "contiguous_gradients")
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


def engine_settings(engine: Any) -> dict[str, Any]:
    """Settings of *engine* besides those that every engine reports."""
    zero = engine._config.zero_config
    offload = {
        "optimizer": zero.offload_optimizer.device if zero.offload_optimizer else "none",
        "parameters": zero.offload_param.device if zero.offload_param else "none",
    }
    settings: dict[str, Any] = {
        "zero_stage": engine.zero_optimization_stage(),
        "optimizer_wrapper": type(engine.optimizer).__qualname__,
        "global_batch_size": _global_batch_size(engine),
        "offload": {key: str(getattr(value, "value", value)) for key, value in offload.items()},
        "reduce_bucket_size": engine.zero_reduce_bucket_size(),
        "allgather_bucket_size": engine.zero_allgather_bucket_size(),
        "overlap_comm": bool(engine.zero_overlap_comm()),
        "throughput_timer": bool(engine.tput_timer.config.enabled),
    }
    live = vars(engine.optimizer)
    settings |= {key: live[key] for key in _OPTIMIZER_SETTINGS if key in live}
    settings |= _division_settings(engine)
    if offloads := [each for each in (zero.offload_optimizer, zero.offload_param) if each]:
        settings["pin_memory"] = all(each.pin_memory for each in offloads)
    if engine.zero_optimization_stage() == 3:
        settings |= {key: getattr(zero, key) for key in _STAGE3_SETTINGS}
        settings["shared_parameters"] = _shared_elements(engine.module)
        if zero.zero_hpz_partition_size > 1:
            # of the live group, which DeepSpeed limits to the existing ranks
            settings["hpz_partition_size"] = next(engine.module.parameters()).ds_secondary_tensor_group_size
        if live_state.uses_mics(engine):
            settings["mics_shard_size"] = next(engine.module.parameters()).comm.param_shard_size
    if engine.autotp_size() > 1:
        cut = [p for p in engine.module.parameters() if live_state.partition_dim(p) is not None]
        settings |= {"mesh": live_state.mesh_sizes(engine), "split_tensors": len(cut)}
    return {**settings, **(_nvme_settings(engine) if "nvme" in settings["offload"].values() else {})}


def _division_settings(engine: Any) -> dict[str, Any]:
    """Division of gradients, which the engine itself reduces in stage 0."""
    if engine.zero_optimization_stage():
        return {}
    prescales, factor = not engine.postscale_gradients(), engine.gradient_predivide_factor()
    return {"prescale_gradients": prescales, "gradient_predivide_factor": factor}


def _global_batch_size(engine: Any) -> int:
    """Samples per step; DeepSpeed's own number counts samples once for each rank that shares them."""
    if engine.autotp_size() <= 1:
        return int(engine.train_batch_size())
    samples = engine.train_micro_batch_size_per_gpu() * engine.gradient_accumulation_steps()
    return int(samples * live_state.data_parallel_size(engine))


def _nvme_settings(engine: Any) -> dict[str, Any]:
    """NVMe offload of the live engine: method, and sizes of its chunks."""
    zero, aio = engine._config.zero_config, engine._config.aio_config
    by_parameter = {"nvme_buffer_size": zero.offload_param.buffer_size} if zero.offload_param else {}
    return {**by_parameter, "aio": dict(aio)}


def _shared_elements(module: Any) -> int:
    """Elements of parameters that more than one module owns, for each owner after the first.

    Each owner gathers its parameters and releases them: a tied embedding is gathered again as the head.
    """
    owned = sum(p.ds_numel for part in module.modules() for p in part.parameters(recurse=False))
    return int(owned - sum(p.ds_numel for p in module.parameters()))


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
