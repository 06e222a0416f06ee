"""FSDP2 (``fully_shard``): a module sharded layer by layer, and what its live units say of themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from distbench.core.case import Precision
from distbench.strategies.torch_engine.reading import Ledger, dtype_name
from distbench.strategies.torch_engine.units import merged, remark, units
from distbench.workloads.weights import DTYPES


def shard(
    module: nn.Module,
    layers: list[nn.Module],
    mesh: DeviceMesh,
    precision: Precision,
    *,
    again: bool,
    root_again: bool = False,
    offload: OffloadPolicy | None = None,
) -> None:
    """Shard *module* over *mesh*, which has one dimension, or copies and shards: each layer, and the rest.

    Layers that share parameters are sharded with the rest.

    Args:
        again: Shard the layers again after their forward pass.
        root_again: The same of the rest, which the backward pass needs first.
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
    for layer in units(module, layers):
        fully_shard(layer, reshard_after_forward=again, **arguments)
    fully_shard(module, reshard_after_forward=root_again, **arguments)


def units_of(module: nn.Module) -> list[nn.Module]:
    """Modules inside *module* that are sharded as one each."""
    return [each for each in module.modules() if isinstance(each, FSDPModule)]


def groups_of(module: nn.Module) -> list[Any]:
    """Groups of parameters of the units; one without parameters of its own has none."""
    return [group for unit in units_of(module) if (group := group_of(unit)) is not None]


def group_of(unit: nn.Module) -> Any:
    """Group of the parameters that are *unit*'s own."""
    return _state(unit)._fsdp_param_group


def reduce_dtype(module: nn.Module) -> str:
    """Dtype in which the live *module*, a unit, reduces gradients."""
    policy = _state(module)._mp_policy
    reduced = policy.reduce_dtype or policy.param_dtype
    return dtype_name([reduced] if reduced else [p.dtype for p in module.parameters()])


def describe_units(module: nn.Module, layers: list[nn.Module]) -> dict[str, Any]:
    """How many units the live *module* has, and which of its *layers* are none."""
    live = units_of(module)
    names = merged(module, layers, live)
    return {"units": len(live), **({"merged_units": names} if names else {})}


def remarks(module: nn.Module, layers: list[nn.Module]) -> list[str]:
    """What nobody would expect of the units of the live *module*, whose layers are *layers*."""
    live = units_of(module)
    return remark(module, layers, live) if live else []


def resharding(of: Iterable[nn.Module]) -> list[bool]:
    """Whether the units *of* a module are sharded again after their forward pass: what is true of any."""
    own = [group for unit in of if (group := group_of(unit)) is not None]
    return sorted({bool(group._reshard_after_forward) for group in own})


def standing_whole(module: nn.Module) -> int:
    """Elements of parameters that are gathered from several ranks at this moment."""
    return sum(
        parameter._orig_size.numel()
        for group in groups_of(module)
        if group.is_unsharded and group.mesh_info.shard_mesh_size > 1
        for parameter in group.fsdp_params
    )


def book(module: nn.Module, ledger: Ledger) -> None:
    """Book the shards, then their gathered copies, and the gradients of both."""
    shards = [shard for group in groups_of(module) for shard in group.fsdp_params]
    whole = [getattr(shard, "_unsharded_param", None) for shard in shards]
    ledger.book("parameters", [(shard._sharded_param_data, shard.sharded_param) for shard in shards])
    ledger.book("buffers", [shard.all_gather_outputs for shard in shards], whole)
    ledger.book("gradients", [parameter.grad for parameter in whole if parameter is not None])
    ledger.book("gradients", [shard.unsharded_accumulated_grad for shard in shards])
    ledger.book("gradients", [shard.sharded_param.grad for shard in shards])


def _state(module: nn.Module) -> Any:
    # torch has no public way to read a unit's policy back, and what was asked for is no proof
    return module._get_fsdp_state()  # type: ignore[operator]
