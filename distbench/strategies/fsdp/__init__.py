"""``fsdp``: torch's fully sharded data parallelism, FSDP2 (``fully_shard``) or the older FSDP1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from distbench import registry
from distbench.bounds import Count
from distbench.case import BYTES, Case
from distbench.env import Machine
from distbench.strategies._model_states import state_problem, zero_table
from distbench.strategies._tensor_parallel import TensorParallelism
from distbench.strategies.base import Engine, Setting, Strategy
from distbench.strategies.description import (
    KEEPING,
    PLACE,
    PORTIONS,
    SHARDING,
    TIMING,
    Card,
    Deviation,
    ExpectedCollective,
    Meaning,
    by_operation,
    points,
)
from distbench.strategies.fsdp.card import CARDS, SPLIT

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from distbench.workloads.base import Workload

# the more is sharded, and the more groups there are, the more there is to understand
_SIMPLICITY = {"grad_op": 32, "full": 33, "hybrid": 34}


@dataclass(frozen=True)
class FullyShardedDataParallel(Strategy):
    """FSDP: parameters, gradients and optimizer state sharded over ranks, wrapped layer by layer."""

    early = ("distbench.strategies.fsdp.fsdp2",)
    settings: ClassVar[Mapping[str, Meaning]] = {
        **points(SHARDING, "units", "unit_classes", "mesh", "placements", "sharding_strategy"),
        **points(SHARDING, "split_tensors", "gathered_parameters"),
        **points(PORTIONS, "sequence_parallel", "loss_parallel"),
        **points(KEEPING, "reshard_after_forward", "reshard_root"),
        **points(TIMING, "reduce_each_micro_batch"),
        **points(PLACE, "cpu_offload"),
    }

    version: Literal[1, 2] = 2
    """2: ``fully_shard`` (FSDP2). 1: ``FullyShardedDataParallel``, for those who still run it."""
    sharding: Literal["full", "grad_op", "hybrid"] = "full"
    """full: parameters are gathered again for the backward pass (ZeRO-3). grad_op: they stay
    gathered from forward to backward (ZeRO-2). hybrid: sharded inside groups, replicated across."""
    replicas: Count = 2
    """Copies of the model that a hybrid shard keeps, at least 1; world size / replicas ranks share one."""
    shards: Count | None = field(default=None, metadata={"since": 4})
    """Ranks that share a copy in a hybrid shard, whatever the world size, such as the devices of a node;
    then there are world size / shards copies. null: replicas says how many."""
    cpu_offload: bool = False
    """Keep parameters, gradients and optimizer state on the CPU."""
    reshard_root: bool = False
    """Shard the root's parameters (embedding, head) again after forward too; they are needed
    first in the backward pass, so torch keeps them by default. FSDP2 only."""
    reduce_each_micro_batch: bool = True
    """Reduce-scatter after every micro-batch; false: accumulate whole gradients in memory and
    reduce once a step."""
    mesh: dict[Literal["tp"], Count] = field(default_factory=dict, metadata={"since": 4})
    """Further dimensions of the device mesh: {tp: 2} cuts every layer over pairs of neighbouring ranks, which
    share rows, and shards over the others (2D parallelism). FSDP2 only."""
    sequence_parallel: bool = field(default=False, metadata={"since": 4})
    """Where mesh has tp: cut what is between the layers too, as the strategy tp does."""
    loss_parallel: bool = field(default=False, metadata={"since": 4})
    """Where mesh has tp: compute the loss from logits that stay cut by classes."""

    @property
    def engine(self) -> str:
        return "FSDPModule" if self.version == 2 else "FullyShardedDataParallel"

    @property
    def label(self) -> str:
        name = "fsdp1" if self.version == 1 else "fsdp"
        if self.sharding != "full":
            name += f"-{self.sharding.replace('_', '-')}"
        split = [f"tp{self.mesh['tp']}", *self._tensor_parallelism.suffixes] if self.mesh else []
        return "+".join([name, *split, *(["offload"] if self.cpu_offload else [])])

    @property
    def card(self) -> Card:
        return SPLIT if self.mesh else CARDS[self.sharding]

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return cls(), cls(sharding="grad_op"), cls(sharding="hybrid"), cls(mesh={"tp": 2})

    @property
    def simplicity(self) -> int:
        # the first version is superseded: behind its successor and every stage of ZeRO
        return _SIMPLICITY[self.sharding] + (30 if self.version == 1 else 0) + (10 if self.mesh else 0)

    @property
    def offloads(self) -> tuple[str, ...]:
        return ("cpu",) if self.cpu_offload else ()

    @property
    def deviations(self) -> tuple[Deviation, ...]:
        return (Deviation("states", "shards are padded to the same size on every rank"),)

    def wrapped_layers(self, effective: Mapping[str, Any]) -> list[str]:
        if self.version == 1:
            # it reports the root's class too, but not which one it is
            return []
        # FSDP2 prefixes class names with its own; the engine it reports is the root's class
        units = [str(name) for name in effective.get("unit_classes") or [] if name != effective.get("engine")]
        classes = [name.removeprefix("FSDP") for name in units]
        return [] if "CheckpointWrapper" in classes else classes

    def data_ranks(self, ranks: int) -> int:
        return max(1, ranks // self._tensor_parallelism.devices)

    def data_mesh(self, world_size: int) -> dict[str, int]:
        """Ranks of the mesh's data dimensions: copies of the model if hybrid, and those that share one."""
        ranks = self.data_ranks(world_size)
        if self.sharding == "hybrid":
            copies = self.replicas if self.shards is None else max(1, ranks // self.shards)
            return {"replicate": copies, "shard": ranks // copies}
        return {"shard": ranks}

    def dimensions(self, ranks: int) -> dict[str, int]:
        return {f"dp_{name}": size for name, size in self.data_mesh(ranks).items()} | dict(self.mesh.items())

    @property
    def _tensor_parallelism(self) -> TensorParallelism:
        return TensorParallelism(self.mesh.get("tp", 1), self.sequence_parallel, self.loss_parallel)

    def device_mesh(self, setting: Setting) -> DeviceMesh:
        """The mesh of live ranks. A collective call."""
        from torch.distributed.device_mesh import init_device_mesh

        sizes = self.data_mesh(setting.world_size) | dict(self.mesh.items())
        return init_device_mesh(setting.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    def problem(self, case: Case, machine: Machine) -> str | None:
        if reason := self._mesh_problem(case):
            return reason
        if self.sharding == "hybrid":
            if self.data_ranks(case.world_size) < 2:
                return "hybrid sharding needs at least 2 ranks"
            if reason := self._group_problem(case.world_size, machine):
                return reason
        if self.version == 1 and self.cpu_offload and case.device == "cpu":
            return "FSDP1 with CPU offload needs an accelerator"
        if self.version == 2 and case.optimizer.name == "sgd" and case.optimizer.kernel == "fused":
            return "torch has no fused SGD for FSDP2's sharded tensors; set optimizer.kernel: foreach"
        return state_problem(case, "rows" if self.version == 2 else "flat", self.label)

    def _mesh_problem(self, case: Case) -> str | None:
        """Why the dimensions of ``mesh`` can't be had."""
        if not self.mesh:
            split = [name for name in ("sequence_parallel", "loss_parallel") if getattr(self, name)]
            return f"{split[0]} needs tensor parallelism; set mesh: {{tp: 2}}" if split else None
        if self.version == 1 or self.cpu_offload:
            return "mesh: tp is offered with FSDP2 that is not offloaded: version: 2, cpu_offload: false"
        devices = self.mesh["tp"]
        if case.world_size % devices:
            return f"mesh: tp = {devices} does not divide the world size, {case.world_size}"
        return self._tensor_parallelism.problem(case)

    def _group_problem(self, world_size: int, machine: Machine) -> str | None:
        """Why the groups of a hybrid shard can't be formed of *world_size* ranks."""
        name, size = ("replicas", self.replicas) if self.shards is None else ("shards", self.shards)
        ranks, of_one = self.data_ranks(world_size), machine.devices // machine.nodes
        if ranks % size:
            what = "data-parallel ranks" if self.mesh else "a world size"
            return f"hybrid sharding needs {what} divisible by {name}: {ranks} ranks, {name} = {size}"
        shards = self.data_mesh(world_size)["shard"]
        together = shards * self._tensor_parallelism.devices
        if self.version == 1 and shards < 2:
            # it falls back to NO_SHARD inside groups of one rank and never reduces across them
            return "FSDP1 does not synchronise replicas if hybrid sharding groups have only 1 rank"
        if self.shards is None and world_size > of_one and of_one % together and machine.nodes > 1:
            inside = max(1, shards * of_one // together)
            return (
                f"replicas = {self.replicas} makes groups of {together} ranks, which span nodes of {of_one} "
                f"devices: a hybrid shard gathers inside nodes; set shards: {inside}, or shards: {shards} if "
                "they are to span nodes"
            )
        return None

    def expected(self, case: Case) -> dict[str, Any]:
        return self._tensor_parallelism.expected if self.mesh else {}

    def collectives(self, case: Case, parameters: int) -> dict[str, float]:
        return by_operation(self.collectives_by_dimension(case, parameters))

    def collectives_by_dimension(self, case: Case, parameters: int) -> list[ExpectedCollective]:
        # Zhao et al. 2023 (arXiv 2304.11277): gathered for the forward pass and, if sharded again
        # after it, for the backward pass; gradients reduce-scattered inside a group of shards and
        # their shards all-reduced across the replicas
        over, ranks = self._tensor_parallelism, self.data_ranks(case.world_size)
        parameters = over.parameters(case, parameters)
        shards = self.data_mesh(case.world_size)["shard"]
        micro = case.batch.gradient_accumulation_steps
        reductions = micro if self.reduce_each_micro_batch else 1
        gathers = 1 if self.sharding == "grad_op" else 2
        reduced = reductions * parameters * BYTES[case.precision.reduce]
        units = self._units(case)
        moved: list[ExpectedCollective] = []
        if shards > 1:
            gathered = micro * gathers * parameters * BYTES[case.precision.compute]
            # the root's parameters stay between the passes, unless they are sharded again
            again = units - (not self.reshard_root) if units and gathers > 1 else 0
            calls = micro * (units + again) if units else None
            moved += [
                ExpectedCollective("all_gather", gathered, "dp_shard", calls),
                ExpectedCollective("reduce_scatter", reduced, "dp_shard", units and reductions * units),
            ]
        if shards < ranks:
            across = "dp_replicate"
            moved += [
                ExpectedCollective("all_reduce", reduced / shards, across, units and reductions * units)
            ]
        # FSDP sums what tensor parallelism leaves of a gradient before it scatters it, in each micro-batch
        norms = micro * BYTES[case.precision.compute]
        samples = case.batch.global_batch_size // ranks
        return [*moved, *over.collectives(case, samples, norms, reductions=micro)]

    def _units(self, case: Case) -> int | None:
        """Units that are gathered one by one: the layers and the rest; None: not known without the model."""
        workload: Workload = registry.make("workloads", case.workload)
        model = workload.stages() if self.version == 2 else None
        return len(model.layers) + 1 if model else None

    def build(self, setting: Setting) -> Engine:
        if self.version == 1:
            from distbench.strategies.fsdp.fsdp1 import build_fsdp1

            return build_fsdp1(self, setting)
        from distbench.strategies.fsdp.fsdp2 import build_fsdp2

        return build_fsdp2(self, setting)

    def model_states(self, case: Case, parameters: int) -> dict[str, float]:
        over = self.data_mesh(case.world_size)["shard"]
        parameters = self._tensor_parallelism.parameters(case, parameters)
        stored = case.precision.master
        sizes = zero_table(case, parameters, stored=stored, shards=(over, over, over))
        if case.batch.gradient_accumulation_steps > 1 and not self.reduce_each_micro_batch:
            # whole gradients are kept until the last micro-batch, in FSDP1 as the backward pass made them
            whole = case.precision.compute if self.version == 1 else case.precision.reduce
            sizes["gradients"] = max(sizes["gradients"], parameters * BYTES[whole])
        return sizes
