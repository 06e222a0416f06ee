"""The worker's side of ``cp`` with a model that is sharded over all ranks, by FSDP2."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import DTensor

from distbench.strategies import cp
from distbench.strategies.base import Setting
from distbench.strategies.cp.engine import rows_of
from distbench.strategies.torch_engine import device_meshes, sharding
from distbench.strategies.torch_engine.context_parallel import ContextEngine
from distbench.strategies.torch_engine.modules import prepared_layers
from distbench.strategies.torch_engine.reading import Ledger
from distbench.workloads import weights
from distbench.workloads.weights import DTYPES


class ShardedContextEngine(ContextEngine):
    """``fully_shard`` over all ranks, of which some share rows."""

    def reduce_dtype(self) -> str:
        return sharding.reduce_dtype(self.module)

    def standing_whole(self) -> int:
        return sharding.standing_whole(self.module)

    def book(self, ledger: Ledger) -> None:
        sharding.book(self.module, ledger)
        super().book(ledger)

    def effective(self) -> dict[str, Any]:
        units = sharding.units_of(self.module)
        first = next(self.module.parameters())
        assert isinstance(first, DTensor)
        return {
            **super().effective(),
            "units": len(units),
            "placements": [str(placement) for placement in first.placements],
            "reshard_after_forward": sharding.resharding(unit for unit in units if unit is not self.module),
        }


def build_sharded(strategy: cp.ContextParallel, setting: Setting) -> ShardedContextEngine:
    """Engine of this rank; the whole model is never on one device."""
    workload, precision = setting.workload, setting.case.precision
    rows = rows_of(strategy, setting)
    module = weights.cast(weights.skeleton(workload), DTYPES[precision.master])
    rows.cut(module)
    tied = weights.tied_groups(module)
    layers = prepared_layers(setting.case, module, workload.layers(module))
    # over those that share rows too, whose gradients are of other positions
    all_ranks = device_meshes.made({"dp_shard_cp": setting.world_size}, setting.device)
    sharding.shard(module, layers, all_ranks, precision, again=True)
    weights.empty(module, setting.device)
    weights.retie(module, tied)
    weights.load(module, setting.weights)
    return ShardedContextEngine(setting, module, layers, rows)
