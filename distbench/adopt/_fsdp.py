"""Script lines that shard a model with FSDP2 or FSDP1."""

from __future__ import annotations

import json
from textwrap import indent
from typing import Any

from distbench.adopt._python import block, device_mesh, dtype, lines
from distbench.adopt.base import ExportedCase
from distbench.core.case import Case
from distbench.core.meshes import DATA_DIMENSIONS
from distbench.strategies.fsdp import FullyShardedDataParallel

SHARDING_STRATEGIES = {"full": "FULL_SHARD", "grad_op": "SHARD_GRAD_OP", "hybrid": "HYBRID_SHARD"}
"""FSDP1's name of each sharding."""


def imports(strategy: FullyShardedDataParallel) -> str:
    """Imports for ``wrap``."""
    fsdp = "from torch.distributed.fsdp import"
    if strategy.version == 1:
        return lines(
            f"{fsdp} CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy",
            "from torch.distributed.fsdp.wrap import CustomPolicy",
        )
    offload = "CPUOffloadPolicy" if strategy.cpu_offload else "OffloadPolicy"
    return f"{fsdp} {', '.join(sorted(['MixedPrecisionPolicy', offload]))}, fully_shard"


def config(measured: ExportedCase, strategy: FullyShardedDataParallel) -> dict[str, Any]:
    """Settings that the files of Accelerate and of Trainer share, except for Accelerate's prefix."""
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
    # prefetching is torch's default, but not Accelerate's
    own = {"use_orig_params": True, "sync_module_states": False, "backward_prefetch": "BACKWARD_PRE"}
    return shared | own


def wrap(measured: ExportedCase, strategy: FullyShardedDataParallel) -> str:
    """Statements that shard ``layers`` and ``model``."""
    return _fsdp1(measured, strategy) if strategy.version == 1 else _fsdp2(measured, strategy)


def stage(measured: ExportedCase, *, again: bool) -> str:
    """Statements that shard ``layers`` and the rest of ``model``, a stage of a pipeline, over ``mesh``.

    Args:
        again: Reshard layers after each of their forward passes.
    """
    return _sharded(_of_data(measured), measured.case, again=again, root_again=False)


def policy(case: Case) -> str:
    """Arguments of FSDP's mixed precision policy."""
    precision = case.precision
    compute = "None" if precision.compute == precision.master else dtype(precision.compute)
    return f"param_dtype={compute}, reduce_dtype={dtype(precision.reduce)}"


def _mesh(measured: ExportedCase) -> str:
    return _of_data(measured) if measured.tensor_parallelism else device_mesh(measured)


def _of_data(measured: ExportedCase) -> str:
    """Dimensions of ``mesh`` whose ranks have their own rows."""
    sizes = measured.strategy.mesh_sizes(measured.case.world_size)
    return f"mesh[{', '.join(json.dumps(name) for name in sizes if name in DATA_DIMENSIONS)}]"


def _fsdp2(measured: ExportedCase, strategy: FullyShardedDataParallel) -> str:
    pinned = f"CPUOffloadPolicy(pin_memory={measured.case.device == 'cuda'})"
    return _sharded(
        _mesh(measured),
        measured.case,
        again=strategy.sharding != "grad_op",
        root_again=strategy.reshard_root,
        offload=pinned if strategy.cpu_offload else "OffloadPolicy()",
    )


def _sharded(mesh: str, case: Case, *, again: bool, root_again: bool, offload: str = "") -> str:
    rows = lines(
        f'"mesh": {mesh},',
        f'"mp_policy": MixedPrecisionPolicy({policy(case)}),',
        f'"offload_policy": {offload},' if offload else "",
    )
    return lines(
        "shard = {",
        indent(rows, "    "),
        "}",
        "for layer in layers:",
        f"    fully_shard(layer, reshard_after_forward={again!r}, **shard)",
        f"fully_shard(model, reshard_after_forward={root_again!r}, **shard)",
    )


def _fsdp1(measured: ExportedCase, strategy: FullyShardedDataParallel) -> str:
    mesh = f"\n            device_mesh={_mesh(measured)}," if strategy.sharding == "hybrid" else ""
    return block(f"""
        chosen = {{id(layer) for layer in layers}}
        model = FullyShardedDataParallel(
            model,
            sharding_strategy=ShardingStrategy.{SHARDING_STRATEGIES[strategy.sharding]},
            auto_wrap_policy=CustomPolicy(lambda layer: id(layer) in chosen),
            cpu_offload=CPUOffload(offload_params={strategy.cpu_offload!r}),
            mixed_precision=MixedPrecision({policy(measured.case)}),
            device_id=device,{mesh}
            use_orig_params=True,
        )
    """)
