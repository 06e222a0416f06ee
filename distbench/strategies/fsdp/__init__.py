"""``fsdp``: torch's fully sharded data parallelism, FSDP2 (``fully_shard``) or the older FSDP1."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from distbench.core import meshes, registry
from distbench.core.bounds import Count
from distbench.core.case import DTYPE_BYTES, Case
from distbench.core.machine import Machine
from distbench.strategies import _in_backward
from distbench.strategies._model_states import optimizer_problem, sharded_model_states
from distbench.strategies._offers import fused_sgd_problem
from distbench.strategies._pipeline import stages_of
from distbench.strategies._tensor_parallel import TensorParallelism
from distbench.strategies._unused_options import unused_option_problem
from distbench.strategies.base import TORCH_CHECKPOINT, RankContext, Strategy
from distbench.strategies.description import (
    GRANULARITY,
    OVERLAP,
    PLACEMENT,
    RESHARDING,
    SHARDING,
    SIMPLICITY_OF_MODEL_PARALLELISM,
    Card,
    ExcessCause,
    ExpectedCollective,
    SettingMeaning,
    by_operation,
    strategy_settings,
)
from distbench.strategies.engine import Engine
from distbench.strategies.fsdp.card import CARDS, HYBRID_TENSOR_PARALLEL, IN_BACKWARD, TENSOR_PARALLEL
from distbench.strategies.fsdp.in_backward import in_backward_problem
from distbench.strategies.fsdp.mesh import (
    DIMENSIONS,
    REST_DIMENSION,
    MeshDimension,
    all_meshes,
    device_mesh,
    group_problem,
    mesh_problem,
    replica_label,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from distbench.workloads.base import Workload


# the more is sharded, and the more groups there are, the harder it is to understand
_SIMPLICITY = {"grad_op": 32, "full": 33, "hybrid": 34}

_UNEVEN = ExcessCause(
    "optimizer_state",
    "shards contain frozen and trained parameters alike, so some ranks have more trained parameters",
)


@dataclass(frozen=True)
class FullyShardedDataParallel(Strategy):
    """FSDP: parameters, gradients and optimizer state sharded over ranks, wrapped layer by layer."""

    early_imports = ("distbench.strategies.fsdp.fsdp2",)
    settings: ClassVar[Mapping[str, SettingMeaning]] = {
        **strategy_settings(
            SHARDING, "units", "unit_classes", "merged_units", "mesh", "placements", "sharding_strategy"
        ),
        **strategy_settings(SHARDING, "split_tensors", "gathered_parameters", "reduced_parameters"),
        **strategy_settings(GRANULARITY, "sequence_parallel", "loss_parallel"),
        **strategy_settings(RESHARDING, "reshard_after_forward", "reshard_root"),
        **strategy_settings(OVERLAP, "reduce_each_micro_batch"),
        **strategy_settings(PLACEMENT, "cpu_offload"),
        **strategy_settings(_in_backward.UPDATE_TIMING, _in_backward.OPTION),
    }

    version: Literal[1, 2] = 2
    """2: ``fully_shard`` (FSDP2). 1: ``FullyShardedDataParallel`` (FSDP1, superseded)."""
    sharding: Literal["full", "grad_op", "hybrid"] = "full"
    """full: parameters are all-gathered again for the backward pass (ZeRO-3). grad_op: they stay
    unsharded from forward to backward (ZeRO-2). hybrid: sharded inside groups, replicated across them."""
    replicas: Count = 2
    """With sharding: hybrid, number of model replicas, at least 1; each is sharded over world size / replicas
    ranks."""
    shards: Count | None = field(default=None, metadata={"since": 4})
    """With sharding: hybrid, ranks per replica, whatever the world size, such as the devices of a node;
    there are world size / shards replicas. null: use replicas."""
    cpu_offload: bool = False
    """Keep parameters, gradients and optimizer state on the CPU."""
    reshard_root: bool = False
    """Reshard the root's parameters (embedding, head) after forward too; they are needed first in the
    backward pass, so torch keeps them unsharded by default. FSDP2 only."""
    reduce_each_micro_batch: bool = True
    """Reduce-scatter after every micro-batch. false: accumulate unsharded gradients and reduce once per
    step."""
    mesh: dict[MeshDimension, Count] | Literal["auto"] = field(default_factory=dict, metadata={"since": 4})
    """Sizes of the device mesh; dp_shard defaults to the rest of the world size. {tp: 2} splits every layer
    across pairs of neighbouring ranks, which process the same samples (2D parallelism); {dp_replicate: 2}
    keeps two replicas of the model, like sharding: hybrid, but with any sharding. auto: a case for every mesh
    that fits the world size and the model. FSDP2 only."""
    sequence_parallel: bool = field(default=False, metadata={"since": 4})
    """With mesh: {tp: N}, also split the activations between layers, as the strategy tp does."""
    loss_parallel: bool = field(default=False, metadata={"since": 4})
    """With mesh: {tp: N}, compute the loss from logits that stay split by class."""
    optimizer_in_backward: bool = field(default=False, metadata={"since": 4})
    """Update each shard as soon as its gradient is reduced, and free the gradient: only those of one layer
    exist at once. Not with clipping, gradient accumulation or a loss scale. FSDP2 only."""

    def __post_init__(self) -> None:
        if self.mesh != "auto":
            # a dimension of one rank is dropped, so that a case has the same id with it and without
            sizes = {name: size for name, size in self.mesh.items() if size > 1 or name == "dp_shard"}
            object.__setattr__(self, "mesh", sizes)

    @property
    def engine_class(self) -> str:
        return "FSDPModule" if self.version == 2 else "FullyShardedDataParallel"

    @property
    def label(self) -> str:
        name = "fsdp1" if self.version == 1 else "fsdp"
        if self.sharding != "full":
            name += f"-{self.sharding.replace('_', '-')}"
        name += replica_label(self)
        split = (
            [f"tp{self.requested_mesh['tp']}", *self.tensor_parallelism.label_parts]
            if self.has_tensor_parallelism
            else []
        )
        more = {"offload": self.cpu_offload, _in_backward.LABEL: self.optimizer_in_backward}
        return "+".join([name, *split, *(word for word, is_on in more.items() if is_on)])

    @property
    def card(self) -> Card:
        is_hybrid = self.sharding == "hybrid" or bool(self.requested_mesh.get("dp_replicate"))
        if self.has_tensor_parallelism:
            return HYBRID_TENSOR_PARALLEL if is_hybrid else TENSOR_PARALLEL
        if self.optimizer_in_backward:
            return IN_BACKWARD
        return CARDS["hybrid" if is_hybrid else self.sharding]

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        ways = cls(), cls(sharding="grad_op"), cls(sharding="hybrid")
        return (
            *ways,
            cls(optimizer_in_backward=True),
            cls(mesh={"tp": 2}),
            cls(mesh={"dp_replicate": 2, "tp": 2}),
        )

    @property
    def simplicity(self) -> int:
        # version 1 is superseded: it comes after its successor and every stage of ZeRO
        more = 2 if self.requested_mesh.get("dp_replicate") else 0
        more += (
            SIMPLICITY_OF_MODEL_PARALLELISM - 15
            if self.has_tensor_parallelism
            else 1
            if self.optimizer_in_backward
            else 0
        )
        return _SIMPLICITY[self.sharding] + more + (15 if self.version == 1 else 0)

    @property
    def checkpoint_format(self) -> str:
        return TORCH_CHECKPOINT if self.version == 2 else ""

    @property
    def offloads(self) -> tuple[str, ...]:
        return ("cpu",) if self.cpu_offload else ()

    @property
    def excess_causes(self) -> tuple[ExcessCause, ...]:
        padded = ExcessCause("states", "shards are padded to the same size on every rank")
        return (padded, _UNEVEN) if self.version == 1 else (padded,)

    @property
    def operations_on_frozen(self) -> Collection[str] | None:
        is_linear = not (self.has_tensor_parallelism or self.optimizer_in_backward)
        return ("all_gather",) if is_linear else None

    def wrapped_layer_classes(self, effective: Mapping[str, Any]) -> list[str]:
        if self.version == 1:
            # it reports the root's class too, but not which one it is
            return []
        # FSDP2 prefixes class names with its own; the engine it reports is the root's class
        units = [str(name) for name in effective.get("unit_classes") or [] if name != effective.get("engine")]
        classes = [name.removeprefix("FSDP") for name in units]
        return [] if "CheckpointWrapper" in classes else classes

    def data_parallel_size(self, ranks: int) -> int:
        return max(1, ranks // self.tensor_parallelism.ranks)

    def mesh_sizes(self, ranks: int) -> dict[str, int]:
        return {**device_mesh(self, ranks).sizes}

    def mesh_variants(self, ranks: int) -> list[Strategy] | None:
        return [replace(self, mesh=mesh) for mesh in all_meshes(ranks)] if self.mesh == "auto" else None

    def nearest_meshes(self, case: Case) -> list[dict[str, int]] | None:
        return meshes.alternatives_if_invalid(
            self.requested_mesh, case.world_size, REST_DIMENSION, DIMENSIONS
        )

    @property
    def requested_mesh(self) -> dict[str, int]:
        """Sizes that the option ``mesh`` specifies."""
        return meshes.requested_sizes(self.mesh)

    @property
    def tensor_parallelism(self) -> TensorParallelism:
        """Tensor parallelism inside the layers."""
        return TensorParallelism(self.requested_mesh.get("tp", 1), self.sequence_parallel, self.loss_parallel)

    @property
    def has_tensor_parallelism(self) -> bool:
        """True if several ranks share samples."""
        return self.tensor_parallelism.ranks > 1

    def init_mesh(self, context: RankContext) -> DeviceMesh:
        """The mesh of live ranks. Collective call."""
        from distbench.strategies.torch_engine import device_meshes

        return device_meshes.init_mesh(self.mesh_sizes(context.world_size), context.device)

    def problem(self, case: Case, machine: Machine) -> str | None:
        is_hybrid = self.sharding == "hybrid"
        needs = {
            "replicas": (
                is_hybrid and self.shards is None,
                "shards: null" if is_hybrid else "sharding: hybrid",
            ),
            "shards": (is_hybrid, "sharding: hybrid"),
            "reshard_root": (self.version == 2, "version: 2"),
        }
        if reason := unused_option_problem(self, type(self)(), needs) or mesh_problem(self, case):
            return reason
        if self.sharding == "hybrid" and (reason := group_problem(self, case.world_size, machine)):
            return reason
        if self.version == 1 and self.cpu_offload and case.device == "cpu":
            return "FSDP1 with CPU offload needs an accelerator"
        if self.version == 2 and (reason := fused_sgd_problem(case)):
            return reason
        if self.optimizer_in_backward and (reason := in_backward_problem(self, case)):
            return reason
        return optimizer_problem(case, "rows" if self.version == 2 else "flat", self.label)

    def required_settings(self, case: Case) -> dict[str, Any]:
        own: dict[str, Any] = {_in_backward.OPTION: True} if self.optimizer_in_backward else {}
        if self.requested_mesh:
            own |= {f"mesh.{name}": size for name, size in self.mesh_sizes(case.world_size).items()}
        return own | (self.tensor_parallelism.required_settings if self.has_tensor_parallelism else {})

    def traffic_by_operation(self, case: Case, parameters: int) -> dict[str, float]:
        return by_operation(self.traffic(case, parameters))

    def traffic(self, case: Case, parameters: int) -> list[ExpectedCollective]:
        # Zhao et al. 2023 (arXiv 2304.11277): all-gathered for the forward pass and, if resharded after it,
        # for the backward pass; gradients reduce-scattered inside a group of shards, and the resulting shards
        # all-reduced across the replicas
        over, ranks = self.tensor_parallelism, self.data_parallel_size(case.world_size)
        parameters = over.parameters_per_rank(case, parameters)
        shards = self.mesh_sizes(case.world_size)["dp_shard"]
        micro = case.batch.gradient_accumulation_steps
        reductions = micro if self.reduce_each_micro_batch else 1
        gathers = 1 if self.sharding == "grad_op" else 2
        reduced = reductions * parameters * DTYPE_BYTES[case.precision.reduce]
        units = self._unit_count(case)
        moved: list[ExpectedCollective] = []
        if shards > 1:
            gathered = micro * gathers * parameters * DTYPE_BYTES[case.precision.compute]
            # the root's parameters stay between the passes, unless they are resharded
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
        # FSDP sums tensor parallelism's partial gradients before it scatters them, in each micro-batch
        norms = micro * DTYPE_BYTES[case.precision.compute]
        samples = case.batch.global_batch_size // ranks
        return [*moved, *over.traffic(case, samples, norms, reductions=micro)]

    def _unit_count(self, case: Case) -> int | None:
        """Number of units gathered one by one: the layers and the rest; None: unknown without the model."""
        workload: Workload = registry.create_plugin("workloads", case.workload)
        # a plan of fully sharded cases is not worth a process that constructs the model
        model = stages_of(case) if self.version == 2 and not workload.reads_model else None
        return len(model.layer_parameters) + 1 if model else None

    def build(self, context: RankContext) -> Engine:
        if self.version == 1:
            from distbench.strategies.fsdp.fsdp1 import build_fsdp1

            return build_fsdp1(self, context)
        from distbench.strategies.fsdp.fsdp2 import build_fsdp2

        return build_fsdp2(self, context)

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        over = self.mesh_sizes(case.world_size)["dp_shard"]
        parameters = self.tensor_parallelism.parameters_per_rank(case, parameters)
        stored = case.precision.master
        sizes = sharded_model_states(case, parameters, stored=stored, shards=(over, over, over))
        if case.batch.gradient_accumulation_steps > 1 and not self.reduce_each_micro_batch:
            # full gradients are kept until the last micro-batch, in FSDP1 in the dtype of the backward pass
            whole = case.precision.compute if self.version == 1 else case.precision.reduce
            sizes["gradients"] = max(sizes["gradients"], parameters * DTYPE_BYTES[whole])
        if self.optimizer_in_backward:
            largest = _in_backward.largest_layer_gradient_bytes(case, parameters)
            return _in_backward.with_gradient_bytes(sizes, largest and largest / over)
        return sizes
