"""The worker's side of ``cp`` with a model that is sharded over all ranks, by FSDP2."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor

from distbench.strategies import cp
from distbench.strategies.base import Setting
from distbench.strategies.cp.engine import rows_of
from distbench.strategies.torch_engine import construction, device_meshes, sharding
from distbench.strategies.torch_engine.context_parallel import ContextEngine, Rows
from distbench.strategies.torch_engine.modules import prepared_layers
from distbench.strategies.torch_engine.reading import Ledger
from distbench.workloads import weights
from distbench.workloads.weights import DTYPES


class ShardedContextEngine(ContextEngine):
    """``fully_shard`` over all ranks, of which some share rows."""

    def __init__(self, setting: Setting, module: nn.Module, layers: list[nn.Module], rows: Rows) -> None:
        super().__init__(setting, module, layers, rows)
        self._layers = layers

    def reduce_dtype(self) -> str:
        return sharding.reduce_dtype(self.module)

    def standing_whole(self) -> int:
        return sharding.standing_whole(self.module)

    def book(self, ledger: Ledger) -> None:
        sharding.book(self.module, ledger)
        super().book(ledger)

    def remarks(self) -> list[str]:
        built = construction.remark(self._setting.workload, "host memory")
        return [*super().remarks(), *built, *sharding.remarks(self.module, self._layers)]

    def effective(self) -> dict[str, Any]:
        units = sharding.units_of(self.module)
        first = next(self.module.parameters())
        assert isinstance(first, DTensor)
        return {
            **super().effective(),
            **sharding.describe_units(self.module, self._layers),
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
