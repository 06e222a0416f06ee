"""Script lines that shard a model with FSDP2 or FSDP1."""

from __future__ import annotations

import json
from typing import Any

from distbench.adopt._python import block, dtype, lines
from distbench.adopt.base import Measured
from distbench.case import Case
from distbench.strategies.fsdp import FullyShardedDataParallel

SHARDING_STRATEGIES = {"full": "FULL_SHARD", "grad_op": "SHARD_GRAD_OP", "hybrid": "HYBRID_SHARD"}
"""FSDP1's name of each sharding."""


def imports(strategy: FullyShardedDataParallel) -> str:
    """Imports for ``wrap``."""
    fsdp = "from torch.distributed.fsdp import"
    if strategy.version == 1:
        return lines(
            "from torch.distributed.device_mesh import init_device_mesh"
            if strategy.sharding == "hybrid"
            else "",
            f"{fsdp} CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy",
            "from torch.distributed.fsdp.wrap import CustomPolicy",
        )
    offload = "CPUOffloadPolicy" if strategy.cpu_offload else "OffloadPolicy"
    return lines(
        "from torch.distributed.device_mesh import init_device_mesh",
        f"{fsdp} {', '.join(sorted(['MixedPrecisionPolicy', offload]))}, fully_shard",
    )


def config(measured: Measured, strategy: FullyShardedDataParallel) -> dict[str, Any]:
    """What the files of Accelerate and of Trainer say alike, but for Accelerate's prefix."""
    classes = measured.layer_classes
    shared: dict[str, Any] = {
        "version": strategy.version,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        **({"transformer_layer_cls_to_wrap": classes} if classes else {}),
        "activation_checkpointing": measured.case.activation_checkpointing == "full",
        "cpu_ram_efficient_loading": False,
        "state_dict_type": "SHARDED_STATE_DICT",
    }
    if strategy.version == 2:
        return {**shared, "reshard_after_forward": strategy.sharding != "grad_op"}
    # prefetching is torch's default, which is not Accelerate's
    own = {"use_orig_params": True, "sync_module_states": False, "backward_prefetch": "BACKWARD_PRE"}
    return shared | own


def wrap(case: Case, strategy: FullyShardedDataParallel) -> str:
    """Statements that shard ``layers`` and ``model``."""
    return _fsdp1(case, strategy) if strategy.version == 1 else _fsdp2(case, strategy)


def policy(case: Case) -> str:
    """Arguments of FSDP's mixed precision policy."""
    precision = case.precision
    compute = "None" if precision.compute == precision.master else dtype(precision.compute)
    return f"param_dtype={compute}, reduce_dtype={dtype(precision.reduce)}"


def _mesh(case: Case, strategy: FullyShardedDataParallel) -> str:
    sizes = strategy.dimensions(case.world_size)
    if strategy.cuts_layers:
        return f"mesh[{', '.join(f'{json.dumps(name)}' for name in sizes if name != 'tp')}]"
    shape, names = (str(tuple(part)).replace("'", '"') for part in (sizes.values(), sizes))
    return f'init_device_mesh("{case.device}", {shape}, mesh_dim_names={names})'


def _fsdp2(case: Case, strategy: FullyShardedDataParallel) -> str:
    offload = (
        f"CPUOffloadPolicy(pin_memory={case.device == 'cuda'})" if strategy.cpu_offload else "OffloadPolicy()"
    )
    return block(f"""
        shard = {{
            "mesh": {_mesh(case, strategy)},
            "mp_policy": MixedPrecisionPolicy({policy(case)}),
            "offload_policy": {offload},
        }}
        for layer in layers:
            fully_shard(layer, reshard_after_forward={strategy.sharding != "grad_op"}, **shard)
        fully_shard(model, reshard_after_forward={strategy.reshard_root!r}, **shard)
    """)


def _fsdp1(case: Case, strategy: FullyShardedDataParallel) -> str:
    mesh = f"\n            device_mesh={_mesh(case, strategy)}," if strategy.sharding == "hybrid" else ""
    return block(f"""
        chosen = {{id(layer) for layer in layers}}
        model = FullyShardedDataParallel(
            model,
            sharding_strategy=ShardingStrategy.{SHARDING_STRATEGIES[strategy.sharding]},
            auto_wrap_policy=CustomPolicy(lambda layer: id(layer) in chosen),
            cpu_offload=CPUOffload(offload_params={strategy.cpu_offload!r}),
            mixed_precision=MixedPrecision({policy(case)}),
            device_id=device,{mesh}
            use_orig_params=True,
        )
    """)
