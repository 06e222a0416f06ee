"""FSDP2 (``fully_shard``): shard a module layer by layer, and read its live units back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from distbench.core.case import PrecisionConfig
from distbench.strategies.torch_engine.readback import StorageCounter, dtype_name
from distbench.strategies.torch_engine.units import merged_layers, merged_layers_remark, separate_layers
from distbench.workloads.weights import DTYPES


def shard_module(
    module: nn.Module,
    layers: list[nn.Module],
    mesh: DeviceMesh,
    precision: PrecisionConfig,
    *,
    reshard: bool,
    reshard_root: bool = False,
    offload: OffloadPolicy | None = None,
    layers_per_unit: int = 1,
) -> list[FSDPModule]:
    """Shard *module* over *mesh*, of one dimension, or replicas and shards: each layer, and the rest.

    Layers that share parameters are sharded with the rest.

    Args:
        reshard: Reshard the layers after their forward pass.
        reshard_root: Likewise the rest, which the backward pass needs first.
        layers_per_unit: Consecutive layers in one unit; the last unit has those that are left.

    Returns:
        The first layer of each unit, in their order.
    """
    policy = MixedPrecisionPolicy(
        param_dtype=DTYPES[precision.compute] if precision.compute != precision.master else None,
        reduce_dtype=DTYPES[precision.reduce],
    )
    arguments: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": policy,
        "offload_policy": offload or OffloadPolicy(),
    }
    separate, size = separate_layers(module, layers), layers_per_unit
    units = [separate[start : start + size] for start in range(0, len(separate), size)]
    for unit in units:
        fully_shard(unit if len(unit) > 1 else unit[0], reshard_after_forward=reshard, **arguments)
    fully_shard(module, reshard_after_forward=reshard_root, **arguments)
    return [first for first, *_ in units if isinstance(first, FSDPModule)]


def set_prefetches(units: list[FSDPModule], forward: int, backward: int) -> None:
    """Let each of *units* begin the all-gathers of *forward* or *backward* others; 0: torch's default."""
    for number, unit in enumerate(units):
        if forward:
            unit.set_modules_to_forward_prefetch(units[number + 1 : number + 1 + forward])
        if backward:
            unit.set_modules_to_backward_prefetch(units[max(0, number - backward) : number][::-1])


def sharded_modules(module: nn.Module) -> list[nn.Module]:
    """Modules inside *module* that are a unit or a layer of one."""
    return [each for each in module.modules() if isinstance(each, FSDPModule)]


def fsdp_units(module: nn.Module) -> list[nn.Module]:
    """Units inside *module*, each by its first module."""
    firsts: dict[int, nn.Module] = {}
    for each in sharded_modules(module):
        firsts.setdefault(id(_fsdp_state(each)), each)
    return list(firsts.values())


def unit_settings(module: nn.Module) -> dict[str, Any]:
    """Layers of the units of the live *module*, and units that each one prefetches; lists if they differ."""
    sizes = Counter(id(_fsdp_state(each)) for each in sharded_modules(module))
    states = [_fsdp_state(each) for each in fsdp_units(module) if each is not module]
    layers = [sizes[id(state)] for state in states]
    forward = [len(state._states_to_forward_prefetch) for state in states]
    backward = [len(state._states_to_backward_prefetch) for state in states]
    # the last unit has the layers that are left, and the last to run have fewer units to prefetch
    is_even = len({*layers[:-1]}) <= 1
    return {
        "layers_per_unit": max(layers, default=1) if is_even else layers,
        "forward_prefetch": _number_ahead(forward),
        "backward_prefetch": _number_ahead(backward[::-1]),
    }


def _number_ahead(counts: list[int]) -> int | list[int]:
    """Units that each one prefetches, by the *counts* in the order of the pass; *counts* if they differ."""
    most = max(counts, default=0)
    return most if counts == [min(most, left) for left in reversed(range(len(counts)))] else counts


def parameter_groups(module: nn.Module) -> list[Any]:
    """Parameter groups of the units; a unit without parameters of its own has none."""
    return [group for unit in fsdp_units(module) if (group := parameter_group(unit)) is not None]


def parameter_group(unit: nn.Module) -> Any:
    """Group of the parameters that are *unit*'s own."""
    return _fsdp_state(unit)._fsdp_param_group


def reduce_dtype(module: nn.Module) -> str:
    """Dtype in which the live *module*, a unit, reduces gradients."""
    policy = _fsdp_state(module)._mp_policy
    reduced = policy.reduce_dtype or policy.param_dtype
    return dtype_name([reduced] if reduced else [p.dtype for p in module.parameters()])


def compute_dtype(module: nn.Module) -> str:
    """Dtype in which the live *module*, a unit, computes."""
    computed = _fsdp_state(module)._mp_policy.param_dtype
    return dtype_name([computed] if computed else [p.dtype for p in module.parameters()])


def describe_units(module: nn.Module, layers: list[nn.Module]) -> dict[str, Any]:
    """Number of units of the live *module*, and those of its *layers* that are none."""
    names = merged_layers(module, layers, sharded_modules(module))
    return {"units": len(fsdp_units(module)), **({"merged_units": names} if names else {})}


def remarks(module: nn.Module, layers: list[nn.Module]) -> list[str]:
    """Unexpected behavior of the units of the live *module*, whose layers are *layers*."""
    live = sharded_modules(module)
    return merged_layers_remark(module, layers, live) if live else []


def reshard_settings(of: Iterable[nn.Module]) -> list[bool]:
    """Distinct settings among the units *of* a module: true if resharded after the forward pass."""
    own = [group for unit in of if (group := parameter_group(unit)) is not None]
    return sorted({bool(group._reshard_after_forward) for group in own})


def unsharded_elements(module: nn.Module) -> int:
    """Elements of parameters that are currently gathered from several ranks."""
    return sum(
        parameter._orig_size.numel()
        for group in parameter_groups(module)
        if group.is_unsharded and group.mesh_info.shard_mesh_size > 1
        for parameter in group.fsdp_params
    )


def count_fsdp_storages(module: nn.Module, counter: StorageCounter) -> None:
    """Count the shards, then their gathered copies, and the gradients of both."""
    shards = [shard for group in parameter_groups(module) for shard in group.fsdp_params]
    whole = [getattr(shard, "_unsharded_param", None) for shard in shards]
    counter.count("parameters", [(shard._sharded_param_data, shard.sharded_param) for shard in shards])
    counter.count("buffers", [shard.all_gather_outputs for shard in shards], whole)
    counter.count("gradients", [parameter.grad for parameter in whole if parameter is not None])
    counter.count("gradients", [shard.unsharded_accumulated_grad for shard in shards])
    counter.count("gradients", [shard.sharded_param.grad for shard in shards])


def _fsdp_state(module: nn.Module) -> Any:
    # torch has no public way to read a unit's policy back, and the request is no proof
    return module._get_fsdp_state()  # type: ignore[operator]
